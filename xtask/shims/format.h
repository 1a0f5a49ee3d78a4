// Force-included into mlx-c. Its io.h calls std::format with bare `{}` only, and GCC 12 has no <format>.
#pragma once
#if __has_include(<format>)
#include <format>
#else
#include <sstream>
#include <string>
#include <string_view>

namespace std {

inline void rooflet_format_rest(ostringstream& out, string_view text) {
  out << text;
}

template <typename First, typename... Rest>
void rooflet_format_rest(
    ostringstream& out,
    string_view text,
    const First& first,
    const Rest&... rest) {
  auto hole = text.find("{}");
  out << text.substr(0, hole);
  if (hole == string_view::npos) {
    return;
  }
  out << first;
  rooflet_format_rest(out, text.substr(hole + 2), rest...);
}

template <typename... Args>
string format(string_view text, const Args&... args) {
  ostringstream out;
  rooflet_format_rest(out, text, args...);
  return out.str();
}

} // namespace std
#endif
