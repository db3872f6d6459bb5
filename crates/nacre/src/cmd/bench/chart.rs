//! The picture of a sweep: operations per second over the limit, files and directories side by side (SVG).

use super::sweep::{Report, Row};
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

/// Draws `report` into `file`.
pub(super) fn draw(report: &Report<'_>, file: &Path) -> Result<()> {
    let text = svg(report).map_err(|e| anyhow!("the picture cannot be drawn: {e}"))?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn svg(report: &Report<'_>) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let who = match report.batch {
            Some(1) => "tasks of one client".to_owned(),
            Some(n) => format!("tasks of one client, {n} changes in a request"),
            None => "processes on one mount".to_owned(),
        };
        let title = format!(
            "{} {who}, round trip {:.1} ms: operations per second",
            report.processes,
            report.round_trip_us as f64 / 1000.0
        );
        let below = area.titled(&title, ("sans-serif", 20))?;
        let (files, dirs): (Vec<&Row>, Vec<&Row>) =
            report.rows.iter().partition(|row| row.phase.starts_with("file"));
        let panels: Vec<_> = [("files", files), ("directories", dirs)]
            .into_iter()
            .filter(|(_, rows)| !rows.is_empty())
            .collect();
        for (part, (name, rows)) in below.split_evenly((1, panels.len().max(1))).iter().zip(&panels) {
            panel(part, name, report, rows)?;
        }
        area.present()?;
    }
    Ok(text)
}

/// One coordinate system; the limits stand on it as they are measured, evenly spaced when each is twice the last.
fn panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    name: &str,
    report: &Report<'_>,
    rows: &[&Row],
) -> Result<(), Box<dyn std::error::Error>>
where
    DB::ErrorType: 'static,
{
    let most = report.rows.iter().flat_map(|r| &r.ops_per_second).copied().fold(1.0, f64::max) * 1.1;
    let x = |limit: u16| f64::from(limit.max(1)).log2();
    let widest = report.limits.iter().copied().max().map_or(1.0, x).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(name, ("sans-serif", 16))
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(-0.15..widest + 0.15, 0.0..most)?;
    // The axis marks are ours: limits are no round logarithms.
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
    for &limit in report.limits {
        let at = chart.backend_coord(&(x(limit), 0.0));
        let (left, top) = area.get_base_pixel();
        area.draw(&Text::new(limit.to_string(), (at.0 - left, at.1 - top + 8), bottom.clone()))?;
    }
    let middle = chart.backend_coord(&(widest / 2.0, 0.0));
    let (left, top) = area.get_base_pixel();
    area.draw(&Text::new("mdc.*.max_mod_rpcs_in_flight", (middle.0 - left, middle.1 - top + 26), bottom))?;
    for (row, colour) in rows.iter().zip(COLOURS) {
        let points: Vec<(f64, f64)> =
            report.limits.iter().map(|l| x(*l)).zip(row.ops_per_second.iter().copied()).collect();
        let best = row.ratio.iter().copied().fold(0.0, f64::max);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(format!("{} (up to ×{best:.1})", row.phase))
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
    fn the_picture_has_a_line_for_each_phase_and_a_mark_for_each_limit() {
        let row = |phase| Row {
            phase,
            ops_per_second: vec![100.0, 400.0],
            ratio: vec![1.0, 4.0],
            ..Row::default()
        };
        let rows = vec![row("file-create"), row("dir-create"), row("dir-remove")];
        let report = Report { limits: &[1, 8], processes: 16, rows, ..Report::default() };
        let text = svg(&report).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        for word in ["16 processes on one mount", "file-create (up to ×4.0)", "dir-remove (up to ×4.0)"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 6);
    }
}
