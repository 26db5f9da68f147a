package tuning

import (
	"os"

	"golang.org/x/sys/windows"
)

// lockFile waits until no other process holds the lock of the file's first byte, and takes it.
func lockFile(file *os.File) error {
	return windows.LockFileEx(windows.Handle(file.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, new(windows.Overlapped))
}

// unlockFile gives the lock back. It can fail only if the lock is not held.
func unlockFile(file *os.File) {
	_ = windows.UnlockFileEx(windows.Handle(file.Fd()), 0, 1, 0, new(windows.Overlapped))
}
