/* The operators of PyTorch that have kernels in C: OPERATOR(name, schema). The name is the
 * operation's in epigrad.h, and a schema's tensors are its inputs in order. What other arguments
 * are follows from their names (operators.c). python/epigrad/ops has the same schemas; a test
 * compares them. */
OPERATOR(matmul_bias_activation,
         "(Tensor a, Tensor b, Tensor? bias=None, str? activation='none', *, float[] parameters=[], str save='auto', str? backend=None, bool "
         "batch_invariant=False) -> (Tensor output, Tensor preactivation)")
OPERATOR(matmul_bias_activation_backward,
         "(Tensor grad_output, Tensor a, Tensor b, Tensor? bias=None, str? activation='none', Tensor? preactivation=None, Tensor? output=None, *, float[] "
         "parameters=[], bool[3] needs=[True, True, True], str? backend=None, bool batch_invariant=False) -> (Tensor grad_a, Tensor grad_b, Tensor grad_bias)")
OPERATOR(linear,
         "(Tensor input, Tensor weight, Tensor? bias=None, str? activation='none', *, float[] parameters=[], str save='auto', str? backend=None, bool "
         "batch_invariant=False) -> (Tensor output, Tensor preactivation)")
OPERATOR(linear_backward,
         "(Tensor grad_output, Tensor input, Tensor weight, Tensor? bias=None, str? activation='none', Tensor? preactivation=None, Tensor? output=None, *, "
         "float[] parameters=[], bool[3] needs=[True, True, True], str? backend=None, bool batch_invariant=False) -> (Tensor grad_input, Tensor grad_weight, "
         "Tensor grad_bias)")
OPERATOR(activation, "(Tensor input, str? activation, *, float[] parameters=[], str? backend=None) -> Tensor")
OPERATOR(activation_backward, "(Tensor grad_output, Tensor input, str? activation, *, float[] parameters=[], str? backend=None) -> Tensor")
OPERATOR(gated_activation, "(Tensor input, str kind='swiglu', int dim=-1, *, float[] parameters=[], str gate='second', str? backend=None) -> Tensor")
OPERATOR(gated_activation_backward,
         "(Tensor grad_output, Tensor input, str kind='swiglu', int dim=-1, *, float[] parameters=[], str gate='second', str? backend=None) -> Tensor")
OPERATOR(gated_product, "(Tensor value, Tensor gate, str kind='swiglu', *, float[] parameters=[], str? backend=None) -> Tensor")
OPERATOR(gated_product_backward,
         "(Tensor grad_output, Tensor value, Tensor gate, str kind='swiglu', *, float[] parameters=[], bool[2] needs=[True, True], str? backend=None) -> "
         "(Tensor grad_value, Tensor grad_gate)")
OPERATOR(lerp, "(Tensor start, Tensor end, Tensor? weight=None, *, float? factor=None, str? backend=None) -> Tensor")
OPERATOR(lerp_backward,
         "(Tensor grad_output, Tensor? start, Tensor? end, Tensor? weight=None, *, float? factor=None, bool[3] needs=[True, True, True], str? backend=None) -> "
         "(Tensor grad_start, Tensor grad_end, Tensor grad_weight)")
OPERATOR(prelu, "(Tensor input, Tensor weight, *, str? backend=None) -> Tensor")
OPERATOR(prelu_backward,
         "(Tensor grad_output, Tensor input, Tensor weight, *, bool[2] needs=[True, True], str? backend=None) -> (Tensor grad_input, Tensor grad_weight)")
OPERATOR(xielu, "(Tensor input, Tensor alpha_p, Tensor alpha_n, float beta=0.5, *, str? backend=None) -> Tensor")
OPERATOR(xielu_backward,
         "(Tensor grad_output, Tensor input, Tensor alpha_p, Tensor alpha_n, float beta=0.5, *, bool[3] needs=[True, True, True], str? backend=None) -> "
         "(Tensor grad_input, Tensor grad_alpha_p, Tensor grad_alpha_n)")
OPERATOR(gated_linear,
         "(Tensor input, Tensor weight_value, Tensor weight_gate, Tensor? bias_value=None, Tensor? bias_gate=None, str kind='swiglu', *, float[] "
         "parameters=[], str save='auto', str? backend=None, bool batch_invariant=False) -> (Tensor output, Tensor preactivation)")
OPERATOR(gated_linear_backward,
         "(Tensor grad_output, Tensor input, Tensor weight_value, Tensor weight_gate, Tensor? bias_value=None, Tensor? bias_gate=None, str kind='swiglu', "
         "Tensor? preactivation=None, *, float[] parameters=[], bool[5] needs=[True, True, True, True, True], str? backend=None, bool batch_invariant=False) "
         "-> (Tensor grad_input, Tensor grad_weight_value, Tensor grad_weight_gate, Tensor grad_bias_value, Tensor grad_bias_gate)")
OPERATOR(mlp,
         "(Tensor input, Tensor weight1, Tensor? bias1, Tensor weight2, Tensor? bias2, str? activation='gelu_tanh', *, float[] parameters=[], str save='auto', "
         "str? backend=None, bool batch_invariant=False) -> (Tensor output, Tensor preactivation)")
OPERATOR(mlp_backward,
         "(Tensor grad_output, Tensor input, Tensor weight1, Tensor? bias1, Tensor weight2, Tensor? bias2, str? activation='gelu_tanh', Tensor? "
         "preactivation=None, *, float[] parameters=[], bool[5] needs=[True, True, True, True, True], str? backend=None, bool batch_invariant=False) -> "
         "(Tensor grad_input, Tensor grad_weight1, Tensor grad_bias1, Tensor grad_weight2, Tensor grad_bias2)")
OPERATOR(gated_mlp,
         "(Tensor input, Tensor weight_in, Tensor? bias_in, Tensor weight_out, Tensor? bias_out, str kind='swiglu', *, float[] parameters=[], str "
         "gate='second', str save='auto', str? backend=None, bool batch_invariant=False) -> (Tensor output, Tensor preactivation)")
OPERATOR(gated_mlp_backward,
         "(Tensor grad_output, Tensor input, Tensor weight_in, Tensor? bias_in, Tensor weight_out, Tensor? bias_out, str kind='swiglu', Tensor? "
         "preactivation=None, *, float[] parameters=[], str gate='second', bool[5] needs=[True, True, True, True, True], str? backend=None, bool "
         "batch_invariant=False) -> (Tensor grad_input, Tensor grad_weight_in, Tensor grad_bias_in, Tensor grad_weight_out, Tensor grad_bias_out)")
OPERATOR(grouped_linear,
         "(Tensor input, Tensor weight, Tensor? bias, Tensor offsets, str? activation='none', *, float[] parameters=[], str save='auto', str? backend=None, "
         "bool batch_invariant=False) -> (Tensor output, Tensor preactivation)")
OPERATOR(grouped_linear_backward,
         "(Tensor grad_output, Tensor input, Tensor weight, Tensor? bias, Tensor offsets, str? activation='none', Tensor? preactivation=None, *, float[] "
         "parameters=[], bool[3] needs=[True, True, True], str? backend=None, bool batch_invariant=False) -> (Tensor grad_input, Tensor grad_weight, Tensor "
         "grad_bias)")
OPERATOR(experts,
         "(Tensor input, Tensor index, Tensor scale, Tensor weight_in, Tensor? bias_in, Tensor weight_out, Tensor? bias_out, str kind='swiglu', *, float[] "
         "parameters=[], str gate='second', str save='auto', str? backend=None, bool batch_invariant=False) -> (Tensor output, Tensor preactivation)")
OPERATOR(experts_backward,
         "(Tensor grad_output, Tensor input, Tensor index, Tensor scale, Tensor weight_in, Tensor? bias_in, Tensor weight_out, Tensor? bias_out, str "
         "kind='swiglu', Tensor? preactivation=None, *, float[] parameters=[], str gate='second', bool[6] needs=[True, True, True, True, True, True], str? "
         "backend=None, bool batch_invariant=False) -> (Tensor grad_input, Tensor grad_scale, Tensor grad_weight_in, Tensor grad_bias_in, Tensor "
         "grad_weight_out, Tensor grad_bias_out)")
