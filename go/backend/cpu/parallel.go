package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/epigrad/epigrad/go/status"
)

// parallel calls work(task) for every task in [0, tasks) on at most threads goroutines, the caller's among them, and returns when all
// are done. Which goroutine runs a task never changes its result. A panic in work becomes the Internal error that is returned.
func parallel(tasks, threads int, work func(task int)) error {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	threads = min(threads, tasks)
	var (
		next    atomic.Int64
		failure atomic.Pointer[status.Error]
		done    sync.WaitGroup
	)
	run := func() {
		defer func() {
			if r := recover(); r != nil {
				failure.CompareAndSwap(nil, status.Errorf(status.Internal, "panic in a CPU kernel: %v\n%s", r, debug.Stack()))
			}
		}()
		for failure.Load() == nil {
			task := int(next.Add(1)) - 1
			if task >= tasks {
				return
			}
			work(task)
		}
	}
	for range threads - 1 {
		done.Add(1)
		go func() {
			defer done.Done()
			run()
		}()
	}
	run()
	done.Wait()
	if err := failure.Load(); err != nil {
		return err
	}
	return nil
}
