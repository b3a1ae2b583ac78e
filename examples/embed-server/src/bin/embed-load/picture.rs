// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latency over time: a point where a request was begun, as high as its answer took, and a line from there to when it was
//! answered.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use clap::Args;
use stasis_plot::{Axis, Chart, Colour, Figure, Mark, Series, Size, Span};

use crate::report::{self, Line, Outcome, Request};

const WAITING: Colour = [178, 205, 228];
const ANSWERED: Colour = [31, 119, 180];
const RETRIED: Colour = [230, 120, 0];
const BAD: Colour = [200, 0, 0];
const SHADES: [Colour; 4] = [[255, 236, 204], [240, 214, 214], [214, 238, 214], [222, 222, 240]];
const SIZE: Size = Size { width: 1280, height: 640 };

/// How to draw.
#[derive(Debug, Args)]
pub struct Options {
    /// What --json printed
    report: PathBuf,
    /// The picture, PNG or SVG as its name ends
    picture: PathBuf,
    /// Shade what happened between two times, in milliseconds from the beginning
    #[arg(long, value_name = "FROM,TO[,NAME]")]
    shade: Vec<Shade>,
    /// What is written above it
    #[arg(long, default_value = "Latency of requests over time")]
    title: String,
    /// A line under that
    #[arg(long)]
    note: Vec<String>,
}

/// Something that happened between two times.
#[derive(Clone, Debug, PartialEq)]
struct Shade {
    from_ms: f64,
    to_ms: f64,
    name: String,
}

impl FromStr for Shade {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, ',');
        let mut time = || parts.next()?.trim().parse::<f64>().ok().filter(|time| time.is_finite());
        let (from_ms, to_ms) = time().zip(time()).ok_or("two times in milliseconds, FROM,TO")?;
        if to_ms < from_ms {
            return Err("it ends before it begins".to_owned());
        }
        Ok(Self { from_ms, to_ms, name: parts.next().unwrap_or("outage").to_owned() })
    }
}

/// Draws a report.
pub fn run(options: &Options) -> Result<ExitCode> {
    let requests: Vec<Request> = report::read(&options.report)?
        .into_iter()
        .filter_map(|line| match line {
            Line::Request(request) => Some(request),
            _ => None,
        })
        .collect();
    Figure::from(chart(options, &requests)).save(&options.picture, SIZE).context("No picture")?;
    println!("{}", options.picture.display());
    Ok(ExitCode::SUCCESS)
}

fn chart(options: &Options, requests: &[Request]) -> Chart {
    let end = requests.iter().map(Request::end_ms).fold(0.0, f64::max) / 1e3;
    let latencies = || requests.iter().map(|request| request.latency_ms);
    let series = |name: &str, colour, radius, test: &dyn Fn(&Request) -> bool| {
        let chosen = requests.iter().filter(|request| test(request));
        let points = chosen.map(|request| (request.start_ms / 1e3, request.latency_ms)).collect();
        Series { name: name.to_owned(), colour, mark: Mark::Points { radius }, points }
    };
    let ok = |request: &Request| request.outcome == Outcome::Ok;
    // A point that is nowhere ends each line.
    let line = |request: &Request| {
        let (start, end, height) = (request.start_ms / 1e3, request.end_ms() / 1e3, request.latency_ms);
        [(start, height), (end, height), (f64::NAN, f64::NAN)]
    };
    let lines = requests.iter().flat_map(line).collect();
    let all = [
        Series { name: "under way".to_owned(), colour: WAITING, mark: Mark::Line, points: lines },
        series("answered", ANSWERED, 2, &|r| ok(r) && r.attempts == 1),
        series("answered after a retry", RETRIED, 3, &|r| ok(r) && r.attempts > 1),
        series("lost or wrong", BAD, 4, &|r| !ok(r)),
    ];
    let span = |(shade, colour): (&Shade, &Colour)| Span {
        name: shade.name.clone(),
        colour: *colour,
        from: shade.from_ms / 1e3,
        to: shade.to_ms / 1e3,
    };
    Chart {
        title: options.title.clone(),
        notes: options.note.clone(),
        x: Axis::linear("request begun at (s)", 0.0, end),
        y: Axis::log(
            "latency (ms)",
            latencies().fold(f64::INFINITY, f64::min),
            latencies().fold(1.0, f64::max),
        ),
        spans: options.shade.iter().zip(SHADES.iter().cycle()).map(span).collect(),
        series: all.into_iter().filter(|series| !series.points.is_empty()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::request;

    #[test]
    fn shade_is_two_times_and_perhaps_a_name() {
        let shade = |text: &str| text.parse::<Shade>();

        let named = Shade { from_ms: 1.0, to_ms: 2.5, name: "down, all".into() };
        assert_eq!(shade("1,2.5,down, all"), Ok(named));
        assert_eq!(shade("1,1").unwrap().name, "outage");
        assert!(shade("2,1").is_err() && shade("1").is_err() && shade("a,2").is_err());
    }

    #[test]
    fn requests_are_told_apart_by_what_became_of_them() {
        let options = Options {
            report: PathBuf::new(),
            picture: PathBuf::new(),
            shade: vec!["1000,2000".parse().unwrap()],
            title: String::new(),
            note: Vec::new(),
        };
        let requests = [
            request(500.0, 20.0, 1, Outcome::Ok),
            request(900.0, 1500.0, 3, Outcome::Ok),
            request(1000.0, 9.0, 1, Outcome::Lost),
        ];

        let chart = chart(&options, &requests);
        assert_eq!(chart.series[0].points[3..5], [(0.9, 1500.0), (2.4, 1500.0)]);
        let points: Vec<_> = chart.series[1..].iter().map(|series| series.points.clone()).collect();
        assert_eq!(points, [vec![(0.5, 20.0)], vec![(0.9, 1500.0)], vec![(1.0, 9.0)]]);
        assert_eq!((chart.spans[0].from, chart.spans[0].to), (1.0, 2.0));
        assert_eq!(chart.y.range(), 1.0..10000.0);
        assert_eq!(super::chart(&options, &requests[..1]).series.len(), 2);
    }
}
