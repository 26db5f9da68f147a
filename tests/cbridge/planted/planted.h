#pragma once

/* Reads the byte behind an allocation of this size. */
int epg_plant_overflow(int bytes);
/* Shifts a number of 32 bits by this many. */
int epg_plant_shift(int by);
/* Has two threads write to one number at the same time. */
int epg_plant_race(void);
