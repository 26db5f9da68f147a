package cpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/epigrad/epigrad/go/backend/cpu/team"
	"github.com/epigrad/epigrad/go/status"
)

const (
	onATeam = "EPIGRAD_TEST_TEAM" // set in a process that has the stand-in for PyTorch
	plenty  = 100 * goroutineWork
)

func TestParallel(t *testing.T) {
	if os.Getenv(onATeam) == "" {
		require.Equal(t, "goroutines", team.Threads())
		require.False(t, team.Run(2, func() { t.Error("there is no team to call it") }))
	} else {
		require.Equal(t, "PyTorch's threads", team.Threads())
	}

	t.Run("every task once", func(t *testing.T) {
		for _, threads := range []int{0, 1, 2, 3, 7, 1000} {
			for _, tasks := range []int{0, 1, 2, 5, 1000} {
				calls := make([]atomic.Int32, tasks)
				require.NoError(t, parallel(tasks, threads, plenty, func(i int) { calls[i].Add(1) }))
				for i := range calls {
					require.EqualValues(t, 1, calls[i].Load(), "task %d of %d on %d threads", i, tasks, threads)
				}
			}
		}
	})

	t.Run("little work leaves no garbage", func(t *testing.T) {
		task := func(int) {}
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if err := parallel(4, 2, 1, task); err != nil {
				t.Error(err)
			}
		}))
	})

	t.Run("on as many threads as asked for", func(t *testing.T) {
		var both sync.WaitGroup
		both.Add(2)
		require.NoError(t, parallel(2, 2, plenty, func(int) { // returns only when both tasks run at the same time
			both.Done()
			both.Wait()
		}))
		var now, most atomic.Int32
		require.NoError(t, parallel(100, 2, plenty, func(int) {
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
			err := parallel(100, 3, plenty, func(i int) {
				if i == bad {
					panic("as the test wants")
				}
			})
			var internal *status.Error
			require.ErrorAs(t, err, &internal)
			require.Equal(t, status.Internal, internal.Code)
			require.Contains(t, err.Error(), "as the test wants")
			require.NoError(t, parallel(100, 3, plenty, func(int) {}))
		}
		require.Error(t, parallel(100, 3, plenty, func(int) { panic("in every thread") }))
	})

	t.Run("many callers, and callers in tasks", func(t *testing.T) {
		var sum atomic.Int64
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 20 {
					assert.NoError(t, parallel(4, 3, plenty, func(i int) {
						assert.NoError(t, parallel(4, 2, plenty, func(j int) { sum.Add(int64(i * j)) }))
					}))
				}
			})
		}
		callers.Wait()
		assert.EqualValues(t, 8*20*36, sum.Load())
	})
}

// The same on a team, in a process that has something of PyTorch's name.
func TestParallelOnATeam(t *testing.T) {
	if runtime.GOOS != "linux" || !withC {
		t.Skip("teams are for Linux, with cgo")
	}
	library := filepath.Join(t.TempDir(), "libtorch_cpu.so")
	compile := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libtorch_cpu.so", "-o", library, "testdata/team.c")
	out, err := compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(test string, environment ...string) string {
		again := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v", "-test.short", "-test.timeout=5m")
		again.Env = append(os.Environ(), append(environment, "LD_PRELOAD="+library)...)
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, run("TestParallel", onATeam+"=1"), "--- PASS: TestParallel/many_callers")
	require.Contains(t, run("TestParallel", "EPIGRAD_CPU_THREADS=goroutines"), "--- PASS: TestParallel/many_callers")
	require.Contains(t, run("TestAnyNumberOfThreads"), "--- PASS: TestAnyNumberOfThreads")
	for _, size := range []string{"1", "12"} { // a runtime may have fewer threads than it is asked for, or more
		require.Contains(t, run("TestPlainResults", "TEAM="+size), "--- PASS: TestPlainResults")
	}
}

func TestThreadsThatThereAreNot(t *testing.T) {
	t.Setenv("EPIGRAD_CPU_THREADS", "fibers")
	for _, engine := range Engines() {
		info := NewOn(engine).Info()
		require.False(t, info.Available)
		require.True(t, strings.HasPrefix(info.Reason, `EPIGRAD_CPU_THREADS: "fibers", want goroutines`), info.Reason)
	}
}
