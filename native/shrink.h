// Grey pictures made smaller: a pixel becomes the mean of the area that it covers, to the byte what OpenCV's INTER_AREA makes of it
// (but where both sides shrink by whole numbers: there it rounds another way).
// Reference with the same meaning: src/fugu/envs/shrink.py.
//
// In whole numbers: with lengths in units of which both an old and a new pixel are multiples, every weight is whole, and so is the
// sum over a new pixel's area. Only where it lies exactly between two shades do the roundings of OpenCV's floating-point sums
// decide; those few pixels are computed as it does.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace fugu {

class Shrink {
 public:
  Shrink(size_t rows, size_t columns, size_t to_rows, size_t to_columns)
      : rows_(rows), columns_(columns), vertical_(rows, to_rows), horizontal_(columns, to_columns) {
    // a column of weighted bytes is held in 16 bits, and a sum is further from a half than floating-point sums may be wrong
    if (vertical_.cell > UINT16_MAX / UINT8_MAX || vertical_.cell * horizontal_.cell > 1 << 14)
      throw std::invalid_argument("these sizes have too small a common divisor");
    sums_.resize(columns + horizontal_.taps);  // the last pixels' taps of weight 0 may lie beyond the end
    totals_.resize(to_columns);
  }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  size_t to_rows() const { return vertical_.first.size(); }
  size_t to_columns() const { return horizontal_.first.size(); }

  // `image` [rows, columns] becomes the brighter of itself and `other`, pixel by pixel, and `out` [to_rows, to_columns] that, smaller.
  void operator()(uint8_t* __restrict image, const uint8_t* __restrict other, uint8_t* __restrict out) {
    for (size_t i = 0; i < rows_ * columns_; ++i) image[i] = image[i] > other[i] ? image[i] : other[i];
    for (size_t y = 0; y < to_rows(); ++y, out += to_columns()) {
      add_rows(image, y);
      if (round_row(out)) settle(image, y, out);
    }
  }

 private:
  // What a new pixel covers of the old ones along an axis: `taps` of them from `first` on, with weights that come to `cell`.
  struct Axis {
    size_t taps;
    uint32_t cell;
    std::vector<size_t> first;
    std::vector<uint32_t> weight;  // [pixels, taps]
    std::vector<float> share;      // weight / cell

    Axis(size_t from, size_t to) {
      if (to == 0 || to > from) throw std::invalid_argument("a picture can only be made smaller");
      const size_t unit = std::gcd(from, to), pixel = to / unit;
      cell = static_cast<uint32_t>(from / unit);
      taps = (cell + pixel - 1) / pixel + (pixel > 1);
      first.resize(to);
      weight.resize(to * taps);
      share.resize(to * taps);
      for (size_t i = 0; i < to; ++i) {
        const size_t begin = i * cell, end = begin + cell;
        first[i] = begin / pixel;
        for (size_t k = 0; k < taps; ++k) {
          const size_t low = std::max(begin, (first[i] + k) * pixel), high = std::min(end, (first[i] + k + 1) * pixel);
          weight[i * taps + k] = low < high ? static_cast<uint32_t>(high - low) : 0;
          share[i * taps + k] = static_cast<float>(static_cast<double>(weight[i * taps + k]) / cell);
        }
      }
    }
  };

  void add_rows(const uint8_t* image, size_t y) {
    const uint32_t* weight = &vertical_.weight[y * vertical_.taps];
    uint16_t* __restrict sums = sums_.data();
    std::fill_n(sums, columns_, uint16_t{0});
    for (size_t k = 0; k < vertical_.taps; ++k) {
      if (weight[k] == 0) continue;  // also: beyond the last row
      const uint8_t* __restrict row = image + (vertical_.first[y] + k) * columns_;
      const auto times = static_cast<uint16_t>(weight[k]);
      for (size_t x = 0; x < columns_; ++x) sums[x] = static_cast<uint16_t>(sums[x] + row[x] * times);
    }
  }

  // Whether some sum lies exactly between two shades; those are rounded up here.
  bool round_row(uint8_t* __restrict out) {
    if (horizontal_.taps == 3)
      add_columns<3>();  // what Atari's screens need: unrolled
    else
      add_columns<0>();
    const uint32_t total = vertical_.cell * horizontal_.cell, half = total / 2;
    const float each = 1 / static_cast<float>(total);
    uint32_t between = 0;
    for (size_t x = 0; x < to_columns(); ++x) {
      const uint32_t raised = totals_[x] + half;
      // exact but for multiples of the total, which may come out one too small
      auto shade = static_cast<uint32_t>(static_cast<int32_t>(static_cast<float>(static_cast<int32_t>(raised)) * each));
      shade += raised - shade * total >= total;
      between |= raised == shade * total;
      out[x] = static_cast<uint8_t>(shade);
    }
    return between && total % 2 == 0;
  }

  template <size_t Taps>
  void add_columns() {
    const size_t taps = Taps > 0 ? Taps : horizontal_.taps;
    const uint32_t* __restrict weight = horizontal_.weight.data();
    const size_t* __restrict first = horizontal_.first.data();
    const uint16_t* __restrict sums = sums_.data();
    for (size_t x = 0; x < to_columns(); ++x) {
      uint32_t sum = 0;
      for (size_t k = 0; k < taps; ++k) sum += weight[x * taps + k] * sums[first[x] + k];
      totals_[x] = sum;
    }
  }

  // The pixels of a row whose sums lie between two shades, as OpenCV adds and rounds.
  void settle(const uint8_t* image, size_t y, uint8_t* out) const {
    const uint32_t total = vertical_.cell * horizontal_.cell;
    for (size_t x = 0; x < to_columns(); ++x) {
      if (totals_[x] % total != total / 2) continue;
      float sum = 0;
      for (size_t j = 0; j < vertical_.taps; ++j) {
        if (vertical_.weight[y * vertical_.taps + j] == 0) continue;
        const uint8_t* row = image + (vertical_.first[y] + j) * columns_ + horizontal_.first[x];
        float across = 0;
        for (size_t k = 0; k < horizontal_.taps; ++k)
          if (horizontal_.weight[x * horizontal_.taps + k] != 0)
            across += static_cast<float>(row[k]) * horizontal_.share[x * horizontal_.taps + k];
        sum += across * vertical_.share[y * vertical_.taps + j];
      }
      out[x] = static_cast<uint8_t>(std::lrintf(sum));  // to the nearest, of two to the even one
    }
  }

  size_t rows_, columns_;
  Axis vertical_, horizontal_;
  std::vector<uint16_t> sums_;    // a row of old pixels' columns, of as many rows as a new one covers
  std::vector<uint32_t> totals_;  // a row of new pixels
};

}  // namespace fugu
