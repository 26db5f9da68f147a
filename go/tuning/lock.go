//go:build unix

package tuning

import (
	"os"
	"syscall"
)

// lockFile waits until no other process holds the file's lock, and takes it.
func lockFile(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX) }

// unlockFile gives the lock back. It can fail only if the lock is not held.
func unlockFile(file *os.File) { _ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }
