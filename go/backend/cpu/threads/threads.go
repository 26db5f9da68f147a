// Package threads runs a call's tasks on several threads: on those of PyTorch's OpenMP runtime
// where there is one, else on goroutines. Which thread runs a task never changes its result. It is
// no part of epigrad's API and may change in any release.
package threads

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/epigrad/epigrad/go/backend/cpu/threads/openmp"
	"github.com/epigrad/epigrad/go/status"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

const (
	// FormulaWork estimates a portable formula on one element, in multiply-adds of a product.
	FormulaWork = 256
	// TaskWork is the least work that is worth another thread: waking one of PyTorch's takes a few
	// microseconds, in which a core does some 10^5 multiply-adds.
	TaskWork = 1 << 17
	// most is the most threads that a run may have, whatever number is asked for: OpenMP starts as
	// many as it is told.
	most = 1 << 10
)

// For returns the threads for a run's number of threads: 0 lets the backend choose.
func For(threads int) int {
	if threads <= 0 {
		return runtime.GOMAXPROCS(0)
	}
	return min(threads, most)
}

// Members is how many threads share tasks of so much work in all: the caller's alone, if it is
// little.
func Members(tasks int64, threads int, work int64) int64 {
	return min(int64(For(threads)), tasks, 1+work/TaskWork)
}

// Parallel calls task(i) for every i in [0, tasks) on at most threads threads, the caller's among
// them, and returns when all are done. Little work stays on the caller's. A panic in a task becomes
// the Internal error that is returned.
func Parallel(tasks, threads int, work int64, task func(i int)) error {
	members := int(Members(int64(tasks), threads, work))
	if members <= 1 {
		return inTurn(tasks, task)
	}
	return onThreads(tasks, members, For(threads), task)
}

// Job is one call of an engine, with the crew that shares its tasks.
type Job interface{ Call(crew *kernels.Crew) }

// freeCrews are crews of one call each. They lie by themselves: cgo would look at their neighbours.
var freeCrews = sync.Pool{New: func() any { return new(kernels.Crew) }}

// Share makes one call of an engine, whose tasks Members threads take: it is called once with those
// of PyTorch's team, where there is one; else each goroutine calls it with the same crew. A panic
// becomes the Internal error that is returned.
func Share(tasks int64, threads int, work int64, j Job) error {
	members := Members(tasks, threads, work)
	crew := freeCrews.Get().(*kernels.Crew)
	defer freeCrews.Put(crew)
	*crew = kernels.Crew{Members: members}
	if members > 1 {
		if crew.Parallel = openmp.Entry(); crew.Parallel == nil {
			return Parallel(int(members), threads, work, func(int) { j.Call(crew) })
		}
		crew.Team = int64(For(threads))
	}
	return once(j, crew)
}

// once makes the call on the caller's thread. It allocates nothing: the smallest problems take a
// few microseconds.
func once(j Job, crew *kernels.Crew) (err error) {
	defer catch(&err)
	j.Call(crew)
	return nil
}

// inTurn calls the tasks on the caller's thread.
func inTurn(tasks int, task func(i int)) (err error) {
	defer catch(&err)
	for i := range tasks {
		task(i)
	}
	return nil
}

// onThreads calls the tasks on `threads` threads. `all` is how many threads the caller may have.
func onThreads(tasks, threads, all int, task func(i int)) error {
	var (
		members atomic.Int64
		next    atomic.Int64
		failure atomic.Pointer[status.Error]
		done    sync.WaitGroup
	)
	run := func() {
		defer func() {
			if r := recover(); r != nil {
				failure.CompareAndSwap(nil, panicked(r))
			}
		}()
		for failure.Load() == nil {
			i := int(next.Add(1)) - 1
			if i >= tasks {
				return
			}
			task(i)
		}
	}
	if openmp.Run(all, func() {
		if members.Add(1) <= int64(threads) {
			run()
		}
	}) {
		threads = 0
	}
	for range threads - 1 {
		done.Add(1)
		go func() {
			defer done.Done()
			run()
		}()
	}
	run() // of what is left: nothing after a team
	done.Wait()
	if err := failure.Load(); err != nil {
		return err
	}
	return nil
}

// catch is deferred: a panic becomes the error.
func catch(err *error) {
	if r := recover(); r != nil {
		*err = panicked(r)
	}
}

// panicked is the error of a task's panic, made where its stack still is.
func panicked(r any) *status.Error {
	return status.Errorf(status.Internal, "panic in a CPU kernel: %v\n%s", r, debug.Stack())
}
