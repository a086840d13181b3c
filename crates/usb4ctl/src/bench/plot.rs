//! The SVG: latency above, bandwidth below, over the message size.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Report, Row};

/// Draws `report` into `file`.
///
/// # Errors
///
/// When the file cannot be written.
pub(super) fn draw(report: &Report, file: &Path) -> Result<()> {
    let root = SVGBackend::new(file, (800, 900)).into_drawing_area();
    paint(report, &root).map_err(|error| anyhow!("{error}"))
}

/// A curve: its name, its colour and what it shows of a row.
type Curve = (&'static str, RGBColor, fn(&Row) -> f64);

type Painted = std::result::Result<(), Box<dyn std::error::Error>>;

fn paint(report: &Report, root: &DrawingArea<SVGBackend<'_>, Shift>) -> Painted {
    root.fill(&WHITE)?;
    let (upper, lower) = root.split_vertically(450);
    let title = format!("{} ({}), {:?}", report.device, report.medium, report.op);
    let curves: [Curve; 2] = [
        ("p50", BLUE, |row| {
            row.latency.as_ref().map_or(0.0, |times| times.p50_us)
        }),
        ("p99", RED, |row| {
            row.latency.as_ref().map_or(0.0, |times| times.p99_us)
        }),
    ];
    chart(&upper, &format!("{title}: latency"), "us", report, &curves)?;
    let curves: [Curve; 1] = [("Gb/s", BLUE, |row| {
        row.bandwidth
            .as_ref()
            .map_or(0.0, |rates| rates.gigabits_per_second)
    })];
    chart(&lower, &format!("{title}: bandwidth"), "Gb/s", report, &curves)?;
    root.present()?;
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "a drawing")]
fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    unit: &str,
    report: &Report,
    curves: &[Curve],
) -> Painted {
    let values = || {
        report
            .rows
            .iter()
            .flat_map(|row| curves.iter().map(move |curve| curve.2(row).max(1e-3)))
    };
    let low = values().fold(f64::INFINITY, f64::min) * 0.8;
    let high = values().fold(1e-3, f64::max) * 1.25;
    let first = report.rows.first().map_or(1.0, |row| row.bytes as f64);
    let last = report
        .rows
        .last()
        .map_or(2.0, |row| row.bytes as f64)
        .max(first * 2.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((first..last).log_scale().base(2.0), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message size in bytes")
        .y_desc(unit)
        .x_label_formatter(&|bytes| format!("{bytes:.0}"))
        .y_label_formatter(&|value| match *value {
            value if value < 10.0 => format!("{value:.2}"),
            value => format!("{value:.0}"),
        })
        .draw()?;
    for (name, color, value) in curves {
        let points = report
            .rows
            .iter()
            .map(|row| (row.bytes as f64, value(row).max(1e-3)));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}
