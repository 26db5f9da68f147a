package threads_test

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend/cpu/threads"
	"github.com/epigrad/epigrad/go/backend/cpu/threads/openmp"
	"github.com/epigrad/epigrad/go/optest/openmptest"
	"github.com/epigrad/epigrad/go/status"
)

// plenty is work for more threads than a test asks for.
const plenty = 100 * threads.TaskWork

func TestParallel(t *testing.T) {
	if openmptest.OnATeam() && os.Getenv("EPIGRAD_CPU_THREADS") == "" {
		require.Equal(t, "PyTorch's threads", openmp.Threads())
	} else {
		require.Equal(t, "goroutines", openmp.Threads())
		require.False(t, openmp.Run(2, func() { t.Error("there is no team to call it") }))
	}

	t.Run("every task once", func(t *testing.T) {
		for _, limit := range []int{0, 1, 2, 3, 7, 1000} {
			for _, tasks := range []int{0, 1, 2, 5, 1000} {
				calls := make([]atomic.Int32, tasks)
				require.NoError(t, threads.Parallel(tasks, limit, plenty, func(i int) { calls[i].Add(1) }))
				for i := range calls {
					require.EqualValues(t, 1, calls[i].Load(), "task %d of %d on %d threads", i, tasks, limit)
				}
			}
		}
	})

	t.Run("little work leaves no garbage", func(t *testing.T) {
		task := func(int) {}
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if err := threads.Parallel(4, 2, 1, task); err != nil {
				t.Error(err)
			}
		}))
	})

	t.Run("on as many threads as asked for", func(t *testing.T) {
		var both sync.WaitGroup
		both.Add(2)
		// returns only when both tasks run at the same time
		require.NoError(t, threads.Parallel(2, 2, plenty, func(int) {
			both.Done()
			both.Wait()
		}))
		var now, most atomic.Int32
		require.NoError(t, threads.Parallel(100, 2, plenty, func(int) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			runtime.Gosched()
			now.Add(-1)
		}))
		assert.LessOrEqual(t, most.Load(), int32(2))
	})

	t.Run("a panic is an error", func(t *testing.T) {
		for _, bad := range []int{0, 3, 99} {
			err := threads.Parallel(100, 3, plenty, func(i int) {
				if i == bad {
					panic("as the test wants")
				}
			})
			var internal *status.Error
			require.ErrorAs(t, err, &internal)
			require.Equal(t, status.Internal, internal.Code)
			require.Contains(t, err.Error(), "as the test wants")
			require.NoError(t, threads.Parallel(100, 3, plenty, func(int) {}))
		}
		require.Error(t, threads.Parallel(100, 3, plenty, func(int) { panic("in every thread") }))
	})

	t.Run("many callers, and callers in tasks", func(t *testing.T) {
		var sum atomic.Int64
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 20 {
					assert.NoError(t, threads.Parallel(4, 3, plenty, func(i int) {
						assert.NoError(t, threads.Parallel(4, 2, plenty, func(j int) { sum.Add(int64(i * j)) }))
					}))
				}
			})
		}
		callers.Wait()
		assert.EqualValues(t, 8*20*36, sum.Load())
	})
}

// The same on a team.
func TestParallelOnATeam(t *testing.T) {
	run := openmptest.Process(t)
	run("TestParallel")
	run("TestParallel", "EPIGRAD_CPU_THREADS=goroutines")
}
