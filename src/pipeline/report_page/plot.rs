//! Plots as SVG inside the page; colours come from its style sheet.

use super::html::escape;
use std::fmt::Write;

/// Width of the drawing, in units of the view box; the browser scales it to the page.
const WIDTH: f64 = 960.0;
/// Height of the drawing.
const HEIGHT: f64 = 240.0;
/// Room for numbers at the left.
const LEFT: f64 = 52.0;
/// Room at the other three sides.
const MARGIN: f64 = 14.0;
/// Lines of a plot that look different from each other.
const STYLES: usize = 6;

/// One line of a plot: its name and its values from left to right, where there is one.
pub struct Series<'s> {
    /// Shown in the legend.
    pub name: &'s str,
    /// Values.
    pub values: Vec<Option<f64>>,
}

/// Signal-to-noise ratios of layers, in graph order. `limit` is drawn as a line: what is below it deserves a look.
pub fn decibels(series: &[Series<'_>], layers: &[&str], limit: f64) -> String {
    let finite = || series.iter().flat_map(|line| line.values.iter().flatten()).copied().filter(|db| db.is_finite());
    if finite().next().is_none() {
        return String::new();
    }
    let low = finite().fold(limit, f64::min).min(0.0);
    let scale = Scale { low, high: finite().fold(limit, f64::max).max(low + 1.0) };
    let mut svg = open("signal-to-noise ratio of every layer in decibels, in graph order");
    let step = if scale.high - scale.low > 60.0 { 20.0 } else { 10.0 };
    let mut tick = (scale.low / step).ceil() * step;
    while tick <= scale.high {
        line_at(&mut svg, scale.y(tick), &format!("{tick:.0} dB"), "grid");
        tick += step;
    }
    line_at(&mut svg, scale.y(limit), "", "limit");
    for (number, line) in series.iter().enumerate() {
        let style = number % STYLES;
        let mut path = String::new();
        let mut dots = String::new();
        for (index, db) in line.values.iter().enumerate() {
            let Some(db) = db.filter(|db| db.is_finite()) else { continue };
            let (x, y) = (x_of(index, line.values.len()), scale.y(db));
            let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { "M" } else { "L" });
            let layer = escape(layers.get(index).copied().unwrap_or_default());
            let name = escape(line.name);
            let _ = writeln!(
                dots,
                "<circle class=\"s{style}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"><title>{name} {layer}: {db:.1} dB</title></circle>"
            );
        }
        let _ = writeln!(svg, "<path class=\"line s{style}\" d=\"{path}\"/>\n{dots}");
    }
    svg.push_str("</svg>\n");
    if series.len() > 1 {
        svg.push_str(&legend(series));
    }
    svg
}

/// A tensor in the plot of ranges.
pub struct Reach {
    /// Distance of two neighbours of its grid.
    pub step: f64,
    /// Largest magnitude on the grid.
    pub most: f64,
    /// Largest magnitude that was seen, if it was observed.
    pub seen: Option<f64>,
}

/// Grids of tensors on a logarithmic scale: a line from the step to the largest magnitude, and a dot at the largest one seen.
pub fn reaches(tensors: &[Reach]) -> String {
    let logarithm = |value: f64| Some(value.log10()).filter(|log| log.is_finite());
    let ends = tensors.iter().flat_map(|t| [Some(t.step), Some(t.most), t.seen]).flatten().filter_map(logarithm);
    let (low, high) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), log| (a.min(log), b.max(log)));
    if low > high {
        return String::new();
    }
    let scale = Scale { low: low.floor(), high: high.ceil().max(low.floor() + 1.0) };
    let mut svg = open("step and largest magnitude of every grid, logarithmic");
    let every = ((scale.high - scale.low) / 8.0).ceil().max(1.0);
    let mut tick = scale.low;
    while tick <= scale.high {
        line_at(&mut svg, scale.y(tick), &format!("1e{tick:.0}"), "grid");
        tick += every;
    }
    let (mut lines, mut dots) = (String::new(), String::new());
    for (index, tensor) in tensors.iter().enumerate() {
        let x = x_of(index, tensors.len());
        if let (Some(step), Some(most)) = (logarithm(tensor.step), logarithm(tensor.most)) {
            let _ = write!(lines, "M{x:.1} {:.1}V{:.1}", scale.y(step), scale.y(most));
        }
        if let Some(seen) = tensor.seen.and_then(logarithm) {
            // A line of no length with round ends is a dot, in far fewer bytes than a circle.
            let _ = write!(dots, "M{x:.1} {:.1}h0", scale.y(seen));
        }
    }
    let _ = writeln!(svg, "<path class=\"reach\" d=\"{lines}\"/>\n<path class=\"dots\" d=\"{dots}\"/>\n</svg>");
    svg
}

/// Values on the vertical axis.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn y(&self, value: f64) -> f64 {
        MARGIN + (HEIGHT - 2.0 * MARGIN) * (self.high - value) / (self.high - self.low)
    }
}

/// The place of one of `count` things on the horizontal axis.
fn x_of(index: usize, count: usize) -> f64 {
    LEFT + (WIDTH - LEFT - MARGIN) * (index as f64 + 0.5) / count.max(1) as f64
}

fn open(title: &str) -> String {
    let title = escape(title);
    format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n")
}

fn line_at(svg: &mut String, y: f64, label: &str, class: &str) {
    let (right, text) = (WIDTH - MARGIN, LEFT - 6.0);
    let _ = writeln!(svg, "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
    if !label.is_empty() {
        let _ = writeln!(svg, "<text x=\"{text}\" y=\"{:.1}\">{}</text>", y + 4.0, escape(label));
    }
}

fn legend(series: &[Series<'_>]) -> String {
    let entry = |(number, line): (usize, &Series<'_>)| {
        format!("<span class=\"key k{}\">{}</span> ", number % STYLES, escape(line.name))
    };
    format!("<p>{}</p>\n", series.iter().enumerate().map(entry).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_without_noise_leave_a_gap_and_nothing_at_all_no_plot() {
        let series = [Series { name: "a<b", values: vec![Some(20.0), None, Some(f64::INFINITY), Some(5.0)] }];
        let svg = decibels(&series, &["x", "y", "z", "w&"], 10.0);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a&lt;b w&amp;: 5.0 dB") && !svg.contains("inf") && !svg.contains("NaN"), "{svg}");
        assert_eq!(decibels(&[Series { name: "a", values: vec![None] }], &["x"], 10.0), "");
    }

    #[test]
    fn higher_decibels_are_drawn_higher() {
        let scale = Scale { low: 0.0, high: 50.0 };
        assert!(scale.y(40.0) < scale.y(10.0) && scale.y(50.0) == MARGIN && scale.y(0.0) == HEIGHT - MARGIN);
    }

    #[test]
    fn several_lines_have_a_legend() {
        let line = |name| Series { name, values: vec![Some(30.0), Some(40.0)] };
        let svg = decibels(&[line("one"), line("two")], &["x", "y"], 10.0);
        assert!(svg.contains("class=\"key k0\">one<") && svg.contains("class=\"key k1\">two<"), "{svg}");
    }

    #[test]
    fn ranges_without_size_are_no_trouble() {
        let reach = |step, most, seen| Reach { step, most, seen };
        let svg =
            reaches(&[reach(1e-4, 3.0, Some(2.0)), reach(0.0, f64::INFINITY, Some(0.0)), reach(1e-9, 1e-9, None)]);
        assert!(svg.contains("1e-9") && !svg.contains("inf") && !svg.contains("NaN"), "{svg}");
        assert_eq!(svg.matches("h0").count(), 1);
        assert_eq!(reaches(&[]), "");
    }
}
