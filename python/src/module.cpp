/// `lca._lca`: the public API of liblca for Python, and nothing else.

#include "binding.h"

#include <lca/version.h>

NB_MODULE(_lca, module) {
  module.doc() = "The binding of liblca; use the package lca.";
  module.attr("__version__") = lca::version();
  lca::python::errors_bind(module);
  lca::python::views_bind(module);
  lca::python::operators_bind(module);
  lca::python::model_bind(module);
  lca::python::session_bind(module);
  lca::python::generate_bind(module);
}
