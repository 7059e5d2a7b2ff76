#include "cli/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "cli/report/report.h"

namespace linestate::cli {
namespace {

constexpr double kWidth = 960.0;
constexpr double kLeft = 86.0;
constexpr double kRight = 24.0;
constexpr double kTop = 92.0;
constexpr double kPanelHeight = 150.0;
constexpr double kPanelGap = 46.0;
constexpr double kBottom = 62.0;
constexpr int kPanels = 3;
constexpr double kHeight = kTop + kPanels * kPanelHeight + (kPanels - 1) * kPanelGap + kBottom;
constexpr size_t kMostPoints = 700;  // about one per pixel

struct Point {
  double x = 0.0;
  double y = 0.0;
};

struct Panel {
  std::string title;
  std::string unit;
  const char* color = "";
  std::vector<Point> points;
  double high = 0.0;   // top of the axis; 0 = from the data
  bool whole = false;  // values are counts
};

std::string number(double value) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.2f", value);
  return text;
}

// 1500000 -> "1.5M"; enough for axis labels.
std::string label(double value) {
  char text[48];
  const double size = std::fabs(value);
  if (size >= 1e6) {
    std::snprintf(text, sizeof(text), "%gM", value / 1e6);
  } else if (size >= 1e4) {
    std::snprintf(text, sizeof(text), "%gk", value / 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%g", value);
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

void add_text(std::string& svg, double x, double y, const char* style, const std::string& text) {
  svg += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" class=\"" + style + "\">" +
         escaped(text) + "</text>\n";
}

void add_line(std::string& svg, double x1, double y1, double x2, double y2, const char* style) {
  svg += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
         "\" y2=\"" + number(y2) + "\" class=\"" + style + "\"/>\n";
}

// Mean of runs of neighbouring steps, so that long runs stay readable and small.
std::vector<Point> thinned(const std::vector<Point>& points) {
  const size_t group = (points.size() + kMostPoints - 1) / kMostPoints;
  if (group <= 1) return points;
  std::vector<Point> out;
  for (size_t begin = 0; begin < points.size(); begin += group) {
    const size_t end = std::min(points.size(), begin + group);
    Point mean;
    for (size_t i = begin; i < end; ++i) {
      mean.x += points[i].x;
      mean.y += points[i].y;
    }
    const auto count = static_cast<double>(end - begin);
    out.push_back({mean.x / count, mean.y / count});
  }
  return out;
}

std::vector<Panel> make_panels(const ReplayResult& result, bool clocked) {
  Panel running{"Running requests", "requests", "#2563a8", {}, 0.0, true};
  Panel rate{"Throughput", "tokens/s", "#b4521b", {}, 0.0, false};
  Panel pool{"Pool occupancy", "% of slots", "#2f7d4f", {}, 100.0, false};
  const auto slots = static_cast<double>(std::max<int64_t>(result.slots, 1));
  for (size_t i = 0; i < result.steps.size(); ++i) {
    const StepSample& step = result.steps[i];
    const double x = clocked ? step.end_s : static_cast<double>(i + 1);
    const auto tokens = static_cast<double>(step.prefill_tokens + step.decode_tokens);
    const auto live = static_cast<double>(step.running);
    running.points.push_back({x, live});
    rate.points.push_back({x, step.backend_s > 0.0 ? tokens / step.backend_s : 0.0});
    pool.points.push_back({x, 100.0 * live / slots});
  }
  std::vector<Panel> panels;
  for (Panel* panel : {&running, &rate, &pool}) {
    panel->points = thinned(panel->points);
    panels.push_back(std::move(*panel));
  }
  return panels;
}

struct Axis {
  double high = 1.0;
  double step = 1.0;
};

Axis make_axis(double most, int wanted, bool whole) {
  Axis axis;
  if (most <= 0.0) return axis;
  axis.step = nice_step(most, wanted);
  if (whole) axis.step = std::max(axis.step, 1.0);
  axis.high = std::ceil(most / axis.step - 1e-9) * axis.step;
  return axis;
}

void draw_panel(std::string& svg, const Panel& panel, double top, double x_high, double x_step,
                bool last, const std::string& x_title) {
  double most = panel.high;
  for (const Point& point : panel.points) most = std::max(most, point.y);
  const Axis axis = make_axis(most, 5, panel.whole);
  const double right = kWidth - kRight;
  const double bottom = top + kPanelHeight;
  auto x_of = [&](double x) { return kLeft + (right - kLeft) * (x / x_high); };
  auto y_of = [&](double y) { return bottom - kPanelHeight * (y / axis.high); };
  add_text(svg, kLeft, top - 10.0, "panel", panel.title + " (" + panel.unit + ")");
  for (double y = 0.0; y <= axis.high * 1.0001; y += axis.step) {
    add_line(svg, kLeft, y_of(y), right, y_of(y), "grid");
    add_text(svg, kLeft - 8.0, y_of(y) + 4.0, "ylabel", label(y));
  }
  for (double x = 0.0; x <= x_high * 1.0001; x += x_step) {
    add_line(svg, x_of(x), top, x_of(x), bottom, "grid");
    if (last) add_text(svg, x_of(x), bottom + 18.0, "xlabel", label(x));
  }
  if (!panel.points.empty()) {
    std::string path;
    for (const Point& point : panel.points) {
      path += (path.empty() ? "M" : " L") + number(x_of(point.x)) + " " + number(y_of(point.y));
    }
    const std::string first = number(x_of(panel.points.front().x));
    const std::string end = number(x_of(panel.points.back().x));
    const std::string base = number(bottom);
    svg += "<path d=\"" + path + " L" + end + " " + base + " L" + first + " " + base +
           " Z\" fill=\"" + panel.color + "\" fill-opacity=\"0.12\"/>\n";
    svg += "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + panel.color +
           "\" stroke-width=\"1.6\" stroke-linejoin=\"round\"/>\n";
  }
  add_line(svg, kLeft, bottom, right, bottom, "axis");
  add_line(svg, kLeft, top, kLeft, bottom, "axis");
  if (last) add_text(svg, (kLeft + right) / 2.0, bottom + 42.0, "xtitle", x_title);
}

std::string header() {
  const std::string width = number(kWidth);
  const std::string height = number(kHeight);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height +
         "\" viewBox=\"0 0 " + width + " " + height +
         "\">\n<style>\n"
         "text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; fill: #222; }\n"
         ".title { font-size: 18px; font-weight: bold; }\n"
         ".subtitle { font-size: 12px; fill: #555; }\n"
         ".panel { font-size: 13px; font-weight: bold; }\n"
         ".xlabel { font-size: 11px; text-anchor: middle; fill: #444; }\n"
         ".ylabel { font-size: 11px; text-anchor: end; fill: #444; }\n"
         ".xtitle { font-size: 13px; text-anchor: middle; }\n"
         ".grid { stroke: #e4e4e4; stroke-width: 1; }\n"
         ".axis { stroke: #666; stroke-width: 1; }\n"
         "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
}

std::string subtitle(const ReplaySettings& settings, const ReplayResult& result) {
  return count_text(result.requests) + " requests, " + count_text(result.input_tokens) +
         " input and " + count_text(result.output_tokens) + " output tokens, " +
         count_text(static_cast<int64_t>(result.steps.size())) + " steps; state " +
         settings.options.state_dtype + ", profile " + settings.options.profile +
         ", prefill budget " + count_text(settings.options.prefill_budget) + " tokens a step";
}

}  // namespace

double nice_step(double high, int wanted) {
  const double raw = high / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10.0 * power;
}

std::string plot_svg(const ReplaySettings& settings, const ReplayResult& result) {
  const bool clocked = settings.options.speed > 0.0;
  const std::vector<Panel> panels = make_panels(result, clocked);
  double x_high = 1.0;
  for (const Panel& panel : panels) {
    for (const Point& point : panel.points) x_high = std::max(x_high, point.x);
  }
  const double x_step = std::max(nice_step(x_high, 10), clocked ? 0.0 : 1.0);
  std::string svg = header();
  add_text(svg, kLeft, 28.0, "title", "linestate replay: " + settings.options.model);
  add_text(svg, kLeft, 48.0, "subtitle", subtitle(settings, result));
  for (int i = 0; i < kPanels; ++i) {
    const double top = kTop + i * (kPanelHeight + kPanelGap);
    draw_panel(svg, panels[static_cast<size_t>(i)], top, x_high, x_step, i == kPanels - 1,
               clocked ? "time (s)" : "step");
  }
  svg += "</svg>\n";
  return svg;
}

}  // namespace linestate::cli
