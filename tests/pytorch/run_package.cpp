// Runs a package of AOTInductor whose model calls epigrad, in a process without Python:
//
//     run_package PACKAGE LIBEPIGRAD DEVICE ROWS FEATURES
//
// The input counts from 0 in sixteenths. Prints "python" if there is an interpreter in the process
// after all, and the output's numbers.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char **arguments) {
  if (count != 6 || !dlopen(arguments[2], RTLD_NOW)) {
    std::fprintf(stderr, "%s\n", count == 6 ? dlerror() : "want a package, libepigrad.so, a device, rows and features");
    return 1;
  }
  const int64_t rows = std::atoll(arguments[4]), features = std::atoll(arguments[5]);
  try {
    torch::inductor::AOTIModelPackageLoader loader(arguments[1]);
    const at::Tensor input = at::arange(rows * features, at::kFloat).reshape({rows, features}) / 16;
    const auto outputs = loader.run({input.to(at::Device(arguments[3]))});
    if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) std::puts("python");
    const at::Tensor out = outputs.at(0).cpu().contiguous();
    for (int64_t i = 0; i < out.numel(); i++) std::printf("%.9g\n", out.data_ptr<float>()[i]);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
