// The part of the Metal Shading Language that rooflet's kernels and MLX's signatures use, for a C++
// compiler. Address spaces of Metal are address spaces of the compiler, so that it rejects pointers
// that mix them.
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
typedef unsigned int uint;
struct uint3 {
  uint x, y, z;
};
typedef _Float16 float16_t;
typedef __bf16 bfloat16_t;
namespace metal {
namespace precise {
float exp(float);
float log(float);
float rsqrt(float);
float tanh(float);
} // namespace precise
template <class T>
T simd_sum(T);
} // namespace metal
using namespace metal;
