/* A fault in C ends the process by its signal, as one in any C extension does.
 *
 * Go's runtime handles SIGSEGV, SIGBUS and SIGFPE while it is loaded. It passes a fault in C on to
 * the handler that it found; where it found none, it writes every goroutine's stack and ends the
 * process by SIGQUIT. So there is one, which is installed before the runtime starts: by a
 * constructor with a priority, before Go's own, which has none. */
#define _XOPEN_SOURCE 700
#include <signal.h>
#include <stddef.h>

/* The instruction is run again when this returns, and the default action ends the process. */
static void leave_to_the_system(int number) { signal(number, SIG_DFL); }

__attribute__((constructor(101))) static void install(void) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    struct sigaction now, ours = {.sa_handler = leave_to_the_system, .sa_flags = SA_ONSTACK};
    if (sigaction(faults[i], NULL, &now) || (now.sa_flags & SA_SIGINFO) || now.sa_handler != SIG_DFL) continue;
    sigemptyset(&ours.sa_mask);
    sigaction(faults[i], &ours, NULL);
  }
}
