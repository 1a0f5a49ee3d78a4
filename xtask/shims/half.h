// Force-included into mlx-c, in place of its half.h, which declares the half types on ARM only.
// mlx-rs calls the accessors that depend on them everywhere; MLX's own types have the same layout.
#pragma once
#define MLX_HALF_H
#define HAS_FLOAT16
#define HAS_BFLOAT16
#include "mlx/types/half_types.h"
using mlx::core::bfloat16_t;
using mlx::core::float16_t;
