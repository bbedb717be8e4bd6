//! What was measured, and what follows from it.

use super::candidate::Place;
use super::counts::Count;
use super::figure::Figure;
use serde::Serialize;

/// Something that has a value in each repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct What {
    pub(crate) figure: Figure,
    /// Counted around the figure, instead of the figure itself.
    pub(crate) count: Option<Count>,
}

impl What {
    /// The figure itself.
    pub(crate) fn figure(figure: Figure) -> Self {
        Self {
            figure,
            count: None,
        }
    }

    /// What a candidate without verbs has instead.
    pub(crate) fn as_stream(&self) -> Option<Self> {
        self.figure
            .as_stream()
            .map(|figure| Self { figure, ..*self })
    }

    /// For people and files.
    pub(crate) fn name(&self) -> String {
        match self.count {
            Some(count) => format!("{}, {}", self.figure, count.name()),
            None => self.figure.to_string(),
        }
    }

    pub(crate) fn unit(&self) -> &'static str {
        match (self.count, self.figure.counted()) {
            (Some(count), Some(per)) => count.unit(per),
            _ => self.figure.unit(),
        }
    }
}

/// The values of one candidate.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) what: What,
    pub(crate) candidate: &'static str,
    pub(crate) place: Place,
    /// One for each repetition, in their order.
    pub(crate) runs: Vec<f64>,
    /// 99th percentiles, likewise; empty for what has none.
    pub(crate) p99: Vec<f64>,
}

impl Series {
    /// Least to greatest, as a part of the median.
    pub(crate) fn spread(&self) -> Option<f64> {
        let middle = median(&self.runs)?;
        let least = self.runs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.runs.iter().copied().fold(0.0, f64::max);
        (self.runs.len() > 1 && middle > 0.0).then(|| (most - least) / middle)
    }
}

/// Everything, in the order in which it was measured first.
#[derive(Default)]
pub(crate) struct Results(Vec<Series>);

impl Results {
    /// Adds a value.
    pub(crate) fn add(
        &mut self,
        candidate: &'static str,
        place: Place,
        what: What,
        value: f64,
        p99: Option<f64>,
    ) {
        let known = self
            .0
            .iter()
            .position(|series| series.candidate == candidate && series.what == what);
        let at = known.unwrap_or_else(|| {
            self.0.push(Series {
                what,
                candidate,
                place,
                runs: Vec::new(),
                p99: Vec::new(),
            });
            self.0.len() - 1
        });
        let series = &mut self.0[at];
        series.runs.push(value);
        series.p99.extend(p99);
    }

    /// All series.
    pub(crate) fn series(&self) -> &[Series] {
        &self.0
    }

    /// What a candidate has for this; if it has no verbs, what it has instead.
    pub(crate) fn of(&self, candidate: &str, what: &What) -> Option<&Series> {
        let find = |what: &What| {
            self.0
                .iter()
                .find(|series| series.candidate == candidate && series.what == *what)
        };
        find(what).or_else(|| find(&what.as_stream()?))
    }

    /// `ours` by `theirs`, formed in each repetition; the median of that.
    pub(crate) fn ratio(&self, ours: &str, theirs: &str, what: &What) -> Option<f64> {
        let (ours, theirs) = (self.of(ours, what)?, self.of(theirs, what)?);
        let ratios: Vec<f64> = ours
            .runs
            .iter()
            .zip(&theirs.runs)
            .filter(|(_, &theirs)| theirs > 0.0)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        median(&ratios)
    }

    /// For a file: a list of what was measured.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Row<'a> {
            figure: String,
            candidate: &'a str,
            unit: &'a str,
            median: Option<f64>,
            /// Median of the repetitions' 99th percentiles.
            p99: Option<f64>,
            runs: &'a [f64],
            p99_runs: &'a [f64],
        }
        let rows: Vec<Row<'_>> = self
            .0
            .iter()
            .map(|series| Row {
                figure: series.what.name(),
                candidate: series.candidate,
                unit: series.what.unit(),
                median: median(&series.runs),
                p99: median(&series.p99),
                runs: &series.runs,
                p99_runs: &series.p99,
            })
            .collect();
        serde_json::to_string_pretty(&rows).map(|text| text + "\n")
    }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Kind, Operation};

    const WRITE: What = What {
        figure: Figure {
            kind: Kind::Bandwidth,
            operation: Operation::Write,
            size: 1 << 20,
        },
        count: None,
    };

    fn some() -> Results {
        let mut results = Results::default();
        for (ours, theirs) in [(10.0, 1.0), (20.0, 10.0), (90.0, 10.0)] {
            results.add("tbrdma", Place::Cable, WRITE, ours, None);
            let stream = WRITE.as_stream().unwrap();
            results.add("tcp", Place::Cable, stream, theirs, Some(5.0));
        }
        results
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_formed_inside_each_repetition() {
        // Of 10, 2 and 9, whereas the medians' ratio is 2.
        assert_eq!(some().ratio("tbrdma", "tcp", &WRITE), Some(9.0));
        assert_eq!(some().ratio("tbrdma", "rxe", &WRITE), None);
    }

    #[test]
    fn spread_is_relative() {
        let results = some();
        let series = results.of("tbrdma", &WRITE).unwrap();
        assert_eq!(series.spread(), Some(4.0));
        let mut one = Results::default();
        one.add("tbrdma", Place::Cable, WRITE, 1.0, None);
        assert_eq!(one.of("tbrdma", &WRITE).unwrap().spread(), None);
    }

    #[test]
    fn json_has_raw_samples() {
        let json: serde_json::Value = serde_json::from_str(&some().json().unwrap()).unwrap();
        assert_eq!(json[0]["figure"], "bandwidth write 1 MiB");
        assert_eq!(json[0]["candidate"], "tbrdma");
        assert_eq!(json[0]["unit"], "MiB/s");
        assert_eq!(json[0]["median"], 20.0);
        assert!(json[0]["p99"].is_null());
        assert_eq!(json[0]["runs"], serde_json::json!([10.0, 20.0, 90.0]));
        assert_eq!(json[1]["figure"], "bandwidth stream 1 MiB");
        assert_eq!(json[1]["p99"], 5.0);
    }
}
