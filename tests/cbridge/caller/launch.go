package caller

/*
#cgo CFLAGS: -I${SRCDIR}/../../../cbridge -I${SRCDIR}/../../../go/backend
#include <stdlib.h>
#include <string.h>
#include "launch.h"

// A framework whose tensors are one block of memory each: sizes, strides, data.
static void *make(void *self, int like, const int64_t *sizes, const int64_t *strides, int32_t rank, DLTensor *t) {
	const call_arguments *a = self;
	int64_t elements = 1;
	for (int32_t d = 0; d < rank; d++) elements *= sizes[d];
	int64_t *block = calloc(2 * rank + elements + 1, sizeof *block);
	memcpy(block, sizes, rank * sizeof *sizes);
	memcpy(block + rank, strides, rank * sizeof *strides);
	*t = *a->inputs[like];
	t->ndim = rank;
	t->shape = block;
	t->strides = block + rank;
	t->data = block + 2 * rank;
	t->byte_offset = 0;
	return block;
}

static void drop(void *self, void *tensor) { free(tensor); }

static int32_t launch(const epg_call *call, int places, int allows_tf32) {
	call_arguments a = {.call = *call};
	for (int i = 0; i < call->num_inputs; i++) {
		if (!call->inputs[i]) continue;
		a.tensors[i] = *call->inputs[i];
		a.inputs[i] = &a.tensors[i];
	}
	a.call.inputs = a.inputs;
	a.call.nbytes = NULL;
	if (allows_tf32 && epg_launch_may_use_tf32(&a)) a.call.flags |= EPG_ALLOW_TF32;
	const epg_framework framework = {.self = &a, .make = make, .drop = drop};
	uint8_t wanted[MAX_OUTPUTS];
	memset(wanted, 1, sizeof wanted);
	void *tensors[MAX_OUTPUTS];
	const int32_t status = epg_launch(&a, wanted, places, &framework, tensors);
	for (int i = 0; !status && i < places; i++) free(tensors[i]);
	return status;
}
*/
import "C"

// Launch runs a call as the extension of Python and the operators of PyTorch do, for a framework
// that may allow TF32. All of so many outputs are made.
func Launch(c *Call, outputs int, allowsTF32 bool) Result {
	var a arena
	defer a.free()
	allows := C.int(0)
	if allowsTF32 {
		allows = 1
	}
	return result(func() C.int32_t { return C.launch(a.call(c), C.int(outputs), allows) })
}
