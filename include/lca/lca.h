#pragma once
/// Everything public.

#include <lca/cache.h>
#include <lca/chat.h>
#include <lca/context.h>
#include <lca/engine.h>
#include <lca/error.h>
#include <lca/file_access.h>
#include <lca/generate.h>
#include <lca/memory.h>
#include <lca/method.h>
#include <lca/model.h>
#include <lca/operator.h>
#include <lca/sampling.h>
#include <lca/session.h>
#include <lca/settings.h>
#include <lca/shape.h>
#include <lca/tensor.h>
#include <lca/tokenizer.h>
#include <lca/version.h>
