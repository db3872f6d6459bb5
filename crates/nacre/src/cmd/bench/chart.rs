//! Pictures of measurements: rates over a limit or a size, panels side by side (SVG).

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1100, 470);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0xd1, 0x49, 0x5b),
    RGBColor(0x2e, 0x93, 0x3c),
    RGBColor(0x8e, 0x5e, 0xa2),
    RGBColor(0xc7, 0x77, 0x00),
    RGBColor(0x55, 0x55, 0x55),
];

/// One coordinate system.
#[derive(Debug, PartialEq)]
pub(super) struct Panel {
    name: String,
    below: String,
    marks: Vec<(f64, String)>,
    lines: Vec<Line>,
}
impl Panel {
    /// `below`: what the horizontal axis shows; `marks`: positions and texts on it.
    pub(super) fn new(name: String, below: String, marks: Vec<(f64, String)>, lines: Vec<Line>) -> Self {
        Self { name, below, marks, lines }
    }
}

/// A line with a value at each mark.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    name: String,
    values: Vec<f64>,
}
impl Line {
    pub(super) fn new(name: String, values: Vec<f64>) -> Self {
        Self { name, values }
    }
}

/// Draws panels into `file`, all with the same vertical axis.
pub(super) fn draw(title: &str, panels: &[Panel], file: &Path) -> Result<()> {
    let text = svg(title, panels).map_err(|e| anyhow!("the picture cannot be drawn: {e}"))?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn svg(title: &str, panels: &[Panel]) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let below = area.titled(title, ("sans-serif", 20))?;
        let values = panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.values);
        let most = values.copied().fold(1.0, f64::max) * 1.1;
        for (part, panel) in below.split_evenly((1, panels.len().max(1))).iter().zip(panels) {
            draw_panel(part, panel, most)?;
        }
        area.present()?;
    }
    Ok(text)
}

fn draw_panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    panel: &Panel,
    most: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    DB::ErrorType: 'static,
{
    let first = panel.marks.first().map_or(0.0, |(x, _)| *x);
    let (least, widest) =
        panel.marks.iter().fold((first, first + 1.0), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(&panel.name, ("sans-serif", 16))
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(least - 0.15..widest + 0.15, 0.0..most)?;
    // The marks of the axis are drawn here, because limits are no round logarithms.
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
        .x_labels(0)
        .y_labels(6)
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    let bottom = ("sans-serif", 13).into_text_style(area).pos(text_pos());
    let (left, top) = area.get_base_pixel();
    for (x, mark) in &panel.marks {
        let at = chart.backend_coord(&(*x, 0.0));
        area.draw(&Text::new(mark.clone(), (at.0 - left, at.1 - top + 8), bottom.clone()))?;
    }
    let middle = chart.backend_coord(&(f64::midpoint(least, widest), 0.0));
    area.draw(&Text::new(panel.below.clone(), (middle.0 - left, middle.1 - top + 26), bottom))?;
    for (line, colour) in panel.lines.iter().zip(COLOURS) {
        let points: Vec<(f64, f64)> =
            panel.marks.iter().map(|(x, _)| *x).zip(line.values.iter().copied()).collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(line.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(0xbb, 0xbb, 0xbb))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

/// Centred, hanging below its point.
fn text_pos() -> plotters::style::text_anchor::Pos {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    Pos::new(HPos::Center, VPos::Top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_every_line_and_every_mark() {
        let line = |name: &str| Line { name: name.into(), values: vec![100.0, 400.0] };
        let panel = |name: &str, lines| Panel {
            name: name.into(),
            below: "limit".into(),
            marks: vec![(0.0, "1".into()), (3.0, "8".into())],
            lines,
        };
        let panels =
            [panel("files", vec![line("create")]), panel("directories", vec![line("mkdir"), line("rmdir")])];
        let text = svg("16 processes", &panels).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        for word in ["16 processes", "files", "directories", "create", "mkdir", "rmdir", "limit"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 6);
    }
}
