// A picture to draw into: 8-bit RGB, no anti-aliasing, no dependencies. Everything outside the picture is cut off.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace fugu {

struct Color {
  uint8_t red, green, blue;
};

class Canvas {
 public:
  Canvas(uint8_t* pixels, int width, int height) : width(width), height(height), pixels_(pixels) {}

  const int width, height;

  void fill(Color color) { rectangle(0, 0, static_cast<float>(width), static_cast<float>(height), color); }

  void pixel(int x, int y, Color color) {
    if (x < 0 || y < 0 || x >= width || y >= height) return;
    uint8_t* at = pixels_ + 3 * (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x));
    at[0] = color.red;
    at[1] = color.green;
    at[2] = color.blue;
  }

  // From (left, top), in pixels.
  void rectangle(float left, float top, float wide, float high, Color color) {
    const int x1 = round(left + wide), y1 = round(top + high);
    for (int y = std::max(0, round(top)); y < std::min(height, y1); ++y)
      for (int x = std::max(0, round(left)); x < std::min(width, x1); ++x) pixel(x, y, color);
  }

  void disc(float x, float y, float radius, Color color) {
    const int bottom = std::min(height - 1, round(y + radius)), right = std::min(width - 1, round(x + radius));
    for (int py = std::max(0, round(y - radius)); py <= bottom; ++py)
      for (int px = std::max(0, round(x - radius)); px <= right; ++px) {
        const float dx = static_cast<float>(px) - x, dy = static_cast<float>(py) - y;
        if (dx * dx + dy * dy <= radius * radius) pixel(px, py, color);
      }
  }

  // A line as thick as `thickness`, with round ends.
  void line(float x0, float y0, float x1, float y1, float thickness, Color color) {
    const float dx = x1 - x0, dy = y1 - y0, length2 = std::max(dx * dx + dy * dy, 1e-12f), r = thickness / 2;
    const int bottom = std::min(height - 1, round(std::max(y0, y1) + r)), right = std::min(width - 1, round(std::max(x0, x1) + r));
    for (int py = std::max(0, round(std::min(y0, y1) - r)); py <= bottom; ++py)
      for (int px = std::max(0, round(std::min(x0, x1) - r)); px <= right; ++px) {
        const float x = static_cast<float>(px), y = static_cast<float>(py);
        const float t = std::clamp(((x - x0) * dx + (y - y0) * dy) / length2, 0.0f, 1.0f);
        const float ex = x - (x0 + t * dx), ey = y - (y0 + t * dy);
        if (ex * ex + ey * ey <= r * r) pixel(px, py, color);
      }
  }

 private:
  static int round(float x) { return static_cast<int>(std::lround(std::clamp(x, -1e6f, 1e6f))); }
  uint8_t* pixels_;
};

namespace colors {
constexpr Color white{250, 250, 248}, black{24, 28, 34}, gray{150, 156, 164}, light{226, 229, 232};
constexpr Color teal{31, 143, 138}, red{204, 72, 62}, orange{226, 142, 50}, yellow{236, 200, 76}, green{96, 160, 78};
constexpr Color blue{66, 112, 180}, purple{136, 88, 168};
}  // namespace colors

}  // namespace fugu
