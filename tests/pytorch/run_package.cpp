// Runs a package of AOTInductor whose model calls epigrad, in a process without Python:
//
//     run_package PACKAGE LIBEPIGRAD ROWS FEATURES
//
// The input counts from 0 in sixteenths. Prints "python" if there is an interpreter in the process
// after all, and the output's numbers.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char **arguments) {
  if (count != 5 || !dlopen(arguments[2], RTLD_NOW)) {
    std::fprintf(stderr, "%s\n", count == 5 ? dlerror() : "want a package, libepigrad.so, rows and features");
    return 1;
  }
  const int64_t rows = std::atoll(arguments[3]), features = std::atoll(arguments[4]);
  try {
    torch::inductor::AOTIModelPackageLoader loader(arguments[1]);
    const auto outputs = loader.run({at::arange(rows * features, at::kFloat).reshape({rows, features}) / 16});
    if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) std::puts("python");
    const at::Tensor out = outputs.at(0).contiguous();
    for (int64_t i = 0; i < out.numel(); i++) std::printf("%.9g\n", out.data_ptr<float>()[i]);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
