// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures: what was measured, in which unit, against what.

use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Where drawings are put: a directory of the repository that git ignores.
pub const OUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../out");

/// A size as a case's name has it.
pub fn size_name(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The benchmark.
    pub bench: String,
    /// What was done.
    pub case: String,
    /// What was counted.
    pub metric: String,
    /// The number; none where it cannot be had here.
    pub value: Option<f64>,
    /// Of the number.
    pub unit: String,
    /// What it is compared with.
    pub versus: Option<String>,
    /// The number divided by the peer's, unless the benchmark says otherwise.
    pub ratio: Option<f64>,
}

/// Where a benchmark's figures go: one JSON line each on the standard output.
#[derive(Debug)]
pub struct Report {
    bench: String,
    started: Instant,
}

impl Report {
    /// The report of one benchmark.
    pub fn new(bench: &str) -> Self {
        Self { bench: bench.to_owned(), started: Instant::now() }
    }

    /// A figure without a peer.
    pub fn plain(&self, case: &str, metric: &str, value: f64, unit: &str) {
        self.print(case, metric, value, unit, None);
    }

    /// A figure and the peer's number in the same unit.
    pub fn versus(&self, case: &str, metric: &str, value: f64, unit: &str, peer: (&str, f64)) {
        self.print(case, metric, value, unit, Some((peer.0, value / peer.1)));
    }

    /// A figure whose ratio is not that of the two numbers.
    pub fn ratio(&self, case: &str, metric: &str, value: f64, unit: &str, peer: (&str, f64)) {
        self.print(case, metric, value, unit, Some(peer));
    }

    fn print(&self, case: &str, metric: &str, value: f64, unit: &str, peer: Option<(&str, f64)>) {
        let figure = Figure {
            bench: self.bench.clone(),
            case: case.to_owned(),
            metric: metric.to_owned(),
            value: value.is_finite().then_some(value),
            unit: unit.to_owned(),
            versus: peer.map(|(name, _)| name.to_owned()),
            ratio: peer.map(|(_, ratio)| ratio).filter(|ratio| ratio.is_finite()),
        };
        self.hand_on(&figure);
    }

    /// A figure that another process has measured.
    pub fn hand_on(&self, figure: &Figure) {
        match serde_json::to_string(figure) {
            Ok(line) => println!("{line}"),
            Err(error) => self.note(&format!("a figure was lost: {error}")),
        }
    }

    /// A word to the reader, on the error stream.
    pub fn note(&self, text: &str) {
        eprintln!("{}: {text}", self.bench);
    }

    /// Time since the benchmark began: what repeats looks here whether there is time for more.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The value below which `share` of the values lie; 0.5 is the median. NaN without values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// The median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Processor, cores, memory, kernel, and the vector extension that waves are executed with, in one line.
pub fn machine() -> String {
    let field = |path: &str, key: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).map(str::to_owned);
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
            .unwrap_or_else(|| "?".to_owned())
    };
    let info = |key| field("/proc/cpuinfo", key);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "{} (family {} model {}), {cores} cores, {} of memory, Linux {}, load {}, waves with {}",
        info("model name"),
        info("cpu family"),
        info("model\t"),
        field("/proc/meminfo", "MemTotal"),
        release.trim(),
        load.split(' ').next().unwrap_or("?"),
        softgpu_waves::Level::current().name(),
    )
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value != 0.0 && value.abs() < 0.1 => format!("{value:.4}"),
        Some(value) if value.abs() < 100.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// The figures for a reader.
pub fn table(figures: &[Figure]) -> String {
    let mut text = String::new();
    let Some(first) = figures.first() else { return text };
    let width = |of: fn(&Figure) -> &str| figures.iter().map(|f| of(f).chars().count()).max().unwrap_or(0);
    let (case, metric) = (width(|f| &f.case), width(|f| &f.metric));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "\n{}", first.bench);
    for figure in figures {
        let _ = write!(
            text,
            "  {:case$}  {:metric$}  {:>9} {:9}",
            figure.case,
            figure.metric,
            number(figure.value),
            figure.unit
        );
        if let Some(versus) = &figure.versus {
            let _ = write!(text, " {:>8} x {versus}", number(figure.ratio));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_of_unsorted_values_is_by_rank() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!((quantile(&values, 0.0), median(&values), quantile(&values, 1.0)), (1.0, 3.0, 5.0));
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn figure_has_exactly_the_promised_keys() {
        let figure = Figure {
            bench: "b".into(),
            case: "c".into(),
            metric: "m".into(),
            value: None,
            unit: "u".into(),
            versus: None,
            ratio: None,
        };
        let text = serde_json::to_string(&figure).unwrap();
        let wanted =
            r#"{"bench":"b","case":"c","metric":"m","value":null,"unit":"u","versus":null,"ratio":null}"#;
        assert_eq!(text, wanted);
    }
}
