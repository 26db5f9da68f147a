package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/epigrad/epigrad/go/backend/cpu/team"
	"github.com/epigrad/epigrad/go/status"
	kernels "github.com/epigrad/epigrad/kernels/cpu"
)

const (
	// Estimates of work, in multiply-adds of a product: that of a formula on one element, and the least that is worth another goroutine. Waking a thread takes
	// tens of microseconds, in which a core does some 10^5 of them.
	formulaWork   = 256
	goroutineWork = 1 << 20
)

// parallel calls task(i) for every i in [0, tasks) on at most threads threads, the caller's among them, and returns when all are done: those of PyTorch's
// team where there is one, else goroutines. Little work stays on the caller's. Which thread runs a task never changes its result. A panic in a task becomes
// the Internal error that is returned.
func parallel(tasks, threads int, work int64, task func(i int)) error {
	members := int(membersFor(int64(tasks), threads, work))
	if members <= 1 {
		return inTurn(tasks, task)
	}
	return spread(tasks, members, threadsFor(threads), task)
}

// membersFor is how many threads share tasks of so much work in all: the caller's alone, if it is little.
func membersFor(tasks int64, threads int, work int64) int64 {
	return min(int64(threadsFor(threads)), tasks, 1+work/goroutineWork)
}

// freeCrews are crews of one call each. They lie by themselves: cgo would look at their neighbours.
var freeCrews = sync.Pool{New: func() any { return new(kernels.Crew) }}

// job is one call of an engine, with the crew that shares its tasks.
type job interface{ call(crew *kernels.Crew) }

// share makes one call of an engine, whose tasks membersFor threads take: it is called once with those of PyTorch's team, where there is one; else each goroutine
// calls it with the same crew. A panic becomes the Internal error that is returned.
func share(tasks int64, threads int, work int64, j job) error {
	members := membersFor(tasks, threads, work)
	crew := freeCrews.Get().(*kernels.Crew)
	defer freeCrews.Put(crew)
	*crew = kernels.Crew{Members: members}
	if members > 1 {
		if crew.Parallel = team.Entry(); crew.Parallel == nil {
			return parallel(int(members), threads, work, func(int) { j.call(crew) })
		}
		crew.Team = int64(threadsFor(threads))
	}
	return once(j, crew)
}

// once makes the call on the caller's thread. It allocates nothing: the smallest problems take a few microseconds.
func once(j job, crew *kernels.Crew) (err error) {
	defer catch(&err)
	j.call(crew)
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

// spread calls them on so many threads, of the `all` that the caller may have.
func spread(tasks, threads, all int, task func(i int)) error {
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
	if team.Run(all, func() {
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

// mostThreads is the most that a run may have, whatever number is asked for: OpenMP starts as many as it is told.
const mostThreads = 1 << 10

// threadsFor is what a run's number of threads means: 0 lets the backend choose.
func threadsFor(threads int) int {
	if threads <= 0 {
		return runtime.GOMAXPROCS(0)
	}
	return min(threads, mostThreads)
}
