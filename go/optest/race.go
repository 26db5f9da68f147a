//go:build race

package optest

// slowed reports whether the race detector is at work, under which Go takes ten times as long.
const slowed = true
