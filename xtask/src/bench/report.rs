//! Tables of what was measured.

use super::candidate::Place;
use super::figure::Operation;
use super::results::{median, Results, Series, What};
use super::targets::TARGETS;
use crate::table::Table;

/// Shown where a candidate has no such thing.
const NOTHING: &str = "–";

impl Results {
    /// Names of the candidates that were measured at a place, ours first.
    fn candidates(&self, place: Place) -> Vec<&'static str> {
        let mut names = Vec::new();
        for series in self.at(place) {
            if !names.contains(&series.candidate) {
                names.push(series.candidate);
            }
        }
        // The order changes between repetitions; the first one's begins with ours.
        names
    }

    fn at(&self, place: Place) -> impl Iterator<Item = &Series> {
        self.series()
            .iter()
            .filter(move |series| series.place == place)
    }

    /// What has a row of its own: everything that a candidate with verbs has.
    fn rows(&self, place: Place, counted: bool) -> Vec<What> {
        let mut rows: Vec<What> = Vec::new();
        for series in self.at(place) {
            let what = series.what;
            if what.figure.operation != Operation::Stream
                && what.count.is_some() == counted
                && !rows.contains(&what)
            {
                rows.push(what);
            }
        }
        rows
    }

    /// Medians, and how ours compares. `None`: nothing was measured there.
    pub(crate) fn figures(&self, place: Place) -> Option<Table> {
        let names = self.candidates(place);
        let (ours, others) = names.split_first()?;
        let mut titles = vec![place_name(place).to_owned(), "unit".to_owned()];
        titles.extend(names.iter().map(|name| (*name).to_owned()));
        titles.extend(others.iter().map(|other| format!("{ours} / {other}")));
        let mut table = Table::new(titles);
        for what in self.rows(place, false) {
            let mut cells = vec![what.name(), what.unit().to_owned()];
            cells.extend(names.iter().map(|name| self.cell(name, &what)));
            cells.extend(others.iter().map(|other| {
                self.ratio(ours, other, &what)
                    .map_or_else(|| NOTHING.to_owned(), number)
            }));
            table.row(cells);
        }
        Some(table)
    }

    /// What was counted.
    pub(crate) fn counts(&self, place: Place) -> Option<Table> {
        self.plain(place, true, |results, name, what| results.cell(name, what))
    }

    /// Least to greatest in percent of the median, of each figure. `None`: there was one repetition only.
    pub(crate) fn noise(&self, place: Place) -> Option<Table> {
        self.at(place).find_map(Series::spread)?;
        self.plain(place, false, |results, name, what| {
            results
                .of(name, what)
                .and_then(Series::spread)
                .map_or_else(|| NOTHING.to_owned(), percent)
        })
    }

    fn plain(
        &self,
        place: Place,
        counted: bool,
        cell: impl Fn(&Self, &str, &What) -> String,
    ) -> Option<Table> {
        let rows = self.rows(place, counted);
        rows.first()?;
        let names = self.candidates(place);
        let mut titles = vec![place_name(place).to_owned()];
        if counted {
            titles.push("unit".to_owned());
        }
        titles.extend(names.iter().map(|name| (*name).to_owned()));
        let mut table = Table::new(titles);
        for what in rows {
            let mut cells = vec![what.name()];
            if counted {
                cells.push(what.unit().to_owned());
            }
            cells.extend(names.iter().map(|name| cell(self, name, &what)));
            table.row(cells);
        }
        Some(table)
    }

    fn cell(&self, candidate: &str, what: &What) -> String {
        let Some(series) = self.of(candidate, what) else {
            return NOTHING.to_owned();
        };
        match (median(&series.runs), median(&series.p99)) {
            (Some(middle), Some(p99)) => format!("{} (p99 {})", number(middle), number(p99)),
            (Some(middle), None) => number(middle),
            (None, _) => NOTHING.to_owned(),
        }
    }

    /// How far we are from what we want.
    pub(crate) fn targets(&self) -> Option<Table> {
        let mut table = Table::new(["wanted", "limit", "found", ""]);
        let mut any = false;
        for target in &TARGETS {
            let Some(found) = target.find(self) else {
                continue;
            };
            any = true;
            table.row([
                target.what(),
                target.limit.to_string(),
                number(found),
                if target.limit.holds(found) {
                    "holds".to_owned()
                } else {
                    "missed".to_owned()
                },
            ]);
        }
        any.then_some(table)
    }

    /// One line on how much repetitions differ. `None`: there was one only.
    pub(crate) fn noise_line(&self) -> Option<String> {
        let spreads: Vec<(f64, &Series)> = self
            .series()
            .iter()
            .filter(|series| series.what.count.is_none())
            .filter_map(|series| Some((series.spread()?, series)))
            .collect();
        let values: Vec<f64> = spreads.iter().map(|(spread, _)| *spread).collect();
        let (worst, series) = spreads.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(format!(
            "Noise: from the least to the greatest repetition of a figure it is {} of their median, as a median of all \
             figures; at worst {} ({}, {}).",
            percent(median(&values)?),
            percent(*worst),
            series.candidate,
            series.what.name()
        ))
    }
}

fn place_name(place: Place) -> &'static str {
    match place {
        Place::Cable => "over the cable",
        Place::Loopback => "in one host",
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Three digits that count, or all before the point.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        small if small == 0.0 || small >= 100.0 => 0,
        small if small >= 10.0 => 1,
        small if small >= 1.0 => 2,
        small if small >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::counts::Count;
    use crate::bench::figure::{Figure, Kind};

    fn results() -> Results {
        let figure = |kind, operation| Figure {
            kind,
            operation,
            size: 64,
        };
        let write = What::figure(figure(Kind::Latency, Operation::Write));
        let stream = write.as_stream().unwrap();
        let send = figure(Kind::Latency, Operation::Send);
        let count = What {
            figure: send,
            count: Some(Count::Frames),
        };
        let mut results = Results::default();
        for (ours, theirs) in [(10.0, 100.0), (11.0, 100.0)] {
            results.add("tbrdma", Place::Cable, write, ours, Some(20.0));
            results.add("tcp", Place::Cable, stream, theirs, Some(200.0));
            results.add("tbrdma", Place::Cable, count, 1.25, None);
        }
        results
    }

    #[test]
    fn streams_are_shown_beside_verbs() {
        let table = results().figures(Place::Cable).unwrap().markdown();
        assert_eq!(
            table,
            "| over the cable | unit | tbrdma | tcp | tbrdma / tcp |\n|---|---|---|---|---|\n\
             | latency write 64 B | µs | 10.5 (p99 20.0) | 100 (p99 200) | 0.105 |\n"
        );
        assert!(results().figures(Place::Loopback).is_none());
    }

    #[test]
    fn counts_and_noise_have_tables_of_their_own() {
        let counts = results().counts(Place::Cable).unwrap().markdown();
        assert!(counts.contains("| latency send 64 B, frames | 1/message | 1.25 | – |"));
        let noise = results().noise(Place::Cable).unwrap().markdown();
        assert!(
            noise.contains("| latency write 64 B | 10 % | 0 % |"),
            "{noise}"
        );
        let line = results().noise_line().unwrap();
        assert!(line.contains("at worst 10 % (tbrdma, latency write 64 B)"));
        assert!(results().counts(Place::Loopback).is_none());
    }

    #[test]
    fn numbers_have_three_digits() {
        let written = [0.0, 0.0123, 0.25, 1.234, 56.78, 123.4, 12345.6].map(number);
        assert_eq!(
            written,
            ["0", "0.0123", "0.250", "1.23", "56.8", "123", "12346"]
        );
    }
}
