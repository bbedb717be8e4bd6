//! How the suite's tests are expected to end, how they ended, and what differs.

use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;

/// How a test ended, or has to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All was as the test wants it.
    Passed,
    /// The device lacks what it looks at. The suite's message, or, if expected, words in it.
    Skipped(String),
    /// It failed in some way; the suite's message.
    Failed(String),
    /// A module that is left out, and that the suite lacks.
    Absent,
}

/// What is expected.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Modules that are not run.
    pub(super) left_out: Vec<String>,
    tests: BTreeMap<String, Outcome>,
    gone: Vec<String>,
    seen: Option<String>,
}

/// How much has to be as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Everything.
    Exact,
    /// What passed before; nothing may fail. For a suite that is newer than the table.
    Newer,
}

/// What the indented lines below a heading mean.
enum Heading {
    LeftOut,
    Gone,
    Tests(Outcome),
}

impl Table {
    /// Reads `expected.txt` or `sid.txt`, which describe themselves.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut table = Self::default();
        let mut heading = None;
        for line in text.lines() {
            let entry = line.trim();
            if entry.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(version) = line.strip_prefix("seen: ") {
                let before = table.seen.replace(version.trim().to_owned());
                ensure!(before.is_none(), "seen is there twice");
                continue;
            }
            if !line.starts_with(' ') {
                heading = Some(Heading::parse(entry).with_context(|| format!("heading: {entry}"))?);
                continue;
            }
            match heading.as_ref().context("an entry without a heading")? {
                Heading::LeftOut => table.left_out.push(entry.to_owned()),
                Heading::Gone => table.gone.push(entry.to_owned()),
                Heading::Tests(outcome) => {
                    let double = table.tests.insert(entry.to_owned(), outcome.clone());
                    ensure!(double.is_none(), "{entry} is listed twice");
                }
            }
        }
        Ok(table)
    }

    /// This table with what another one has on top of it.
    ///
    /// # Errors
    ///
    /// When something is said on top that makes no difference, or is gone that was not there.
    pub(super) fn with(mut self, other: Self) -> Result<Self> {
        for test in &other.gone {
            let before = self.tests.remove(test);
            ensure!(before.is_some(), "{test} is gone, but was not there before");
        }
        for (test, outcome) in other.tests {
            ensure!(
                !other.gone.contains(&test) && self.tests.get(&test) != Some(&outcome),
                "{test} is listed twice"
            );
            self.tests.insert(test, outcome);
        }
        for module in other.left_out {
            ensure!(
                !self.left_out.contains(&module),
                "{module} is left out twice"
            );
            self.left_out.push(module);
        }
        self.seen = other.seen;
        Ok(self)
    }

    /// What applies to a suite of this version.
    pub(super) fn rule(&self, version: &str) -> Rule {
        match &self.seen {
            Some(seen) if seen != version => Rule::Newer,
            _ => Rule::Exact,
        }
    }

    /// Differences between these outcomes and the expected ones, a line each.
    pub(super) fn differences(
        &self,
        outcomes: &BTreeMap<String, Outcome>,
        rule: Rule,
    ) -> Vec<String> {
        use Outcome::{Absent, Failed, Passed, Skipped};
        let exact = |test: &str, outcome: &Outcome| match (self.tests.get(test), outcome) {
            (_, Failed(text)) => Some(format!("failed: {text}")),
            (_, Absent) => Some("is left out and is not there".into()),
            (Some(Passed), Passed) => None,
            (Some(Skipped(words)), Skipped(text)) if text.contains(words) => None,
            (Some(Skipped(words)), Skipped(text)) => Some(format!(
                "skipped, but not for what has to do with {words}: {text}"
            )),
            (Some(_), Passed) => Some("passes by now: move it to the list of what passes".into()),
            (Some(_), Skipped(text)) => Some(format!("has to pass and was skipped: {text}")),
            (None, Passed) => Some("is not listed; it passed".into()),
            (None, Skipped(text)) => Some(format!("is not listed; it was skipped: {text}")),
        };
        // Whether it counts with a newer suite too.
        let always = |test: &str, outcome: &Outcome| match outcome {
            Failed(_) => true,
            Skipped(_) => self.tests.get(test) == Some(&Passed),
            Passed | Absent => false,
        };
        let ended = outcomes
            .iter()
            .filter(|(test, outcome)| rule == Rule::Exact || always(test, outcome))
            .filter_map(|(test, outcome)| Some(format!("{test}: {}", exact(test, outcome)?)));
        let missing = self
            .tests
            .keys()
            .filter(|test| rule == Rule::Exact && !outcomes.contains_key(*test))
            .map(|test| format!("{test}: is listed and was not run"));
        ended.chain(missing).collect()
    }
}

impl Heading {
    fn parse(line: &str) -> Result<Self> {
        if line == "passed" {
            return Ok(Self::Tests(Outcome::Passed));
        }
        let (what, reason) = line.split_once(": ").context("no reason is given")?;
        ensure!(!reason.trim().is_empty(), "the reason is empty");
        if what == "left out" {
            return Ok(Self::LeftOut);
        }
        if what == "gone" {
            return Ok(Self::Gone);
        }
        let words = what
            .strip_prefix("skipped (")
            .and_then(|rest| rest.strip_suffix(')'))
            .context("neither passed, skipped, left out nor gone")?;
        ensure!(!words.is_empty(), "no words of the suite's message");
        Ok(Self::Tests(Outcome::Skipped(words.to_owned())))
    }
}

/// Reads what `run.py` wrote down.
///
/// A test that was begun and did not end counts as failed, and so does one of which a part failed, whatever else is said
/// of it.
pub(super) fn outcomes(written: &str) -> Result<BTreeMap<String, Outcome>> {
    let mut outcomes = BTreeMap::new();
    let mut running: Option<&str> = None;
    for line in written.lines() {
        let mut fields = line.splitn(3, '\t');
        let (Some(what), Some(test), Some(text)) = (fields.next(), fields.next(), fields.next())
        else {
            bail!("not a line of run.py: {line}");
        };
        let text = text.to_owned();
        let outcome = match what {
            "run" => {
                if let Some(before) = running.replace(test) {
                    unfinished(&mut outcomes, before);
                }
                continue;
            }
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped(text),
            "failed" | "error" => Outcome::Failed(text),
            "absent" => Outcome::Absent,
            _ => bail!("an outcome that is not known: {line}"),
        };
        // A class or module that cannot be set up has a line of its own, without a beginning.
        if running == Some(test) {
            running = None;
        }
        let kept = outcomes
            .entry(test.to_owned())
            .or_insert_with(|| outcome.clone());
        if matches!(outcome, Outcome::Failed(_)) {
            *kept = outcome;
        }
    }
    if let Some(last) = running {
        unfinished(&mut outcomes, last);
    }
    Ok(outcomes)
}

fn unfinished(outcomes: &mut BTreeMap<String, Outcome>, test: &str) {
    outcomes
        .entry(test.to_owned())
        .or_insert_with(|| Outcome::Failed("it did not come to its end".into()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "# of this test\nleft out: other hardware\n    test_x\n\npassed\n    m.C.a\n    m.C.b\n\
                         \nskipped (XRC): not offered\n    m.C.c\n";

    fn differences(written: &str) -> Vec<String> {
        let table = Table::parse(TABLE).unwrap();
        assert_eq!(table.left_out, ["test_x"]);
        table.differences(&outcomes(written).unwrap(), Rule::Exact)
    }

    const GOOD: &str =
        "run\tm.C.a\t\npassed\tm.C.a\t\nrun\tm.C.b\t\npassed\tm.C.b\t\nrun\tm.C.c\t\n\
                        skipped\tm.C.c\tno XRC here\n";

    #[test]
    fn what_is_expected_is_no_difference() {
        assert_eq!(differences(GOOD), Vec::<String>::new());
    }

    #[test]
    fn every_difference_is_told() {
        for (from, to, told) in [
            (
                "passed\tm.C.b\t",
                "skipped\tm.C.b\tno XRC",
                "m.C.b: has to pass",
            ),
            (
                "passed\tm.C.b\t",
                "failed\tm.C.b\t1 != 2",
                "m.C.b: failed: 1 != 2",
            ),
            ("passed\tm.C.b\t", "error\tm.C.b\toh", "m.C.b: failed: oh"),
            (
                "skipped\tm.C.c\tno XRC here",
                "passed\tm.C.c\t",
                "m.C.c: passes by now",
            ),
            ("no XRC here", "no device", "m.C.c: skipped, but not for"),
            (
                "no XRC here",
                "no XRC\nrun\tm.C.d\t\npassed\tm.C.d\t",
                "m.C.d: is not listed; it passed",
            ),
            (
                "no XRC here",
                "no XRC\nskipped\tm.C.d\tXRC",
                "m.C.d: is not listed; it was",
            ),
            (
                "run\tm.C.a\t\npassed\tm.C.a\t\n",
                "",
                "m.C.a: is listed and was not run",
            ),
            (
                "run\tm.C.a",
                "absent\ttest_x\t\nrun\tm.C.a",
                "test_x: is left out and is not there",
            ),
        ] {
            let found = differences(&GOOD.replace(from, to));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(told), "{found:?}");
        }
    }

    #[test]
    fn a_test_without_an_end_failed() {
        for from in ["passed\tm.C.b\t\n", "skipped\tm.C.c\tno XRC here\n"] {
            let found = differences(&GOOD.replace(from, ""));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("did not come to its end"), "{found:?}");
        }
    }

    #[test]
    fn a_failed_part_is_not_covered_up() {
        let parts = "passed\tm.C.b\t\nfailed\tm.C.b\tpart 3\npassed\tm.C.b\t";
        let found = differences(&GOOD.replace("passed\tm.C.b\t", parts));
        assert_eq!(found, ["m.C.b: failed: part 3"]);
    }

    const ON_TOP: &str = "seen: 7.1\nleft out: more of it\n    test_y\ngone: renamed\n    m.C.b\n\
                          passed\n    m.C.d\nskipped (why): it differs here\n    m.C.a\n";

    const NEW: &str = "skipped\tm.C.a\tthat is why\nskipped\tm.C.c\tno XRC\npassed\tm.C.d\t\n";

    fn differences_on_top(written: &str, rule: Rule) -> Vec<String> {
        let table = Table::parse(TABLE).unwrap();
        let table = table.with(Table::parse(ON_TOP).unwrap()).unwrap();
        assert_eq!(table.left_out, ["test_x", "test_y"]);
        table.differences(&outcomes(written).unwrap(), rule)
    }

    #[test]
    fn what_is_said_on_top_counts() {
        assert_eq!(differences_on_top(NEW, Rule::Exact), Vec::<String>::new());
        let found = differences_on_top(&GOOD.replace("m.C.c", "m.C.d"), Rule::Exact);
        let begins = [
            "m.C.a: passes",
            "m.C.b: is not listed",
            "m.C.d: has to pass",
        ];
        assert_eq!(found.len(), begins.len() + 1, "{found:?}");
        for (found, begin) in found.iter().zip(begins) {
            assert!(found.starts_with(begin), "{found}");
        }
        assert_eq!(found[3], "m.C.c: is listed and was not run");
    }

    #[test]
    fn the_version_that_was_seen_decides_about_the_rule() {
        let table = Table::parse(TABLE).unwrap();
        let table = table.with(Table::parse(ON_TOP).unwrap()).unwrap();
        assert_eq!(table.rule("7.1"), Rule::Exact);
        assert_eq!(table.rule("7.10"), Rule::Newer);
        assert_eq!(Table::parse(TABLE).unwrap().rule("7.10"), Rule::Exact);
    }

    #[test]
    fn a_newer_suite_may_have_other_tests() {
        for (from, to) in [
            ("\nskipped\tm.C.c\tno XRC", ""),
            ("\npassed\tm.C.d\t", ""),
            ("no XRC", "another reason"),
            ("skipped\tm.C.c\tno XRC", "passed\tm.C.c\t"),
            ("\npassed\tm.C.d", "\npassed\tm.C.e\t\npassed\tm.C.d"),
            ("\npassed\tm.C.d", "\nskipped\tm.C.e\tno\npassed\tm.C.d"),
            ("\npassed\tm.C.d", "\npassed\tm.C.b\t\npassed\tm.C.d"),
            ("\npassed\tm.C.d", "\nabsent\ttest_x\t\npassed\tm.C.d"),
        ] {
            let written = NEW.replacen(from, to, 1);
            assert_eq!(
                differences_on_top(&written, Rule::Newer),
                Vec::<String>::new()
            );
            assert_eq!(
                differences_on_top(&written, Rule::Exact).len(),
                1,
                "{written}"
            );
        }
    }

    #[test]
    fn a_newer_suite_must_not_fail_nor_pass_less() {
        for (from, to, told) in [
            (
                "passed\tm.C.d\t",
                "failed\tm.C.d\t1 != 2",
                "m.C.d: failed: 1 != 2",
            ),
            (
                "passed\tm.C.d\t",
                "passed\tm.C.d\t\nerror\tm.C.e\toh",
                "m.C.e: failed: oh",
            ),
            (
                "passed\tm.C.d\t",
                "passed\tm.C.d\t\nrun\tm.C.e\t",
                "m.C.e: failed: it did not come to its end",
            ),
            (
                "passed\tm.C.d\t",
                "skipped\tm.C.d\tno",
                "m.C.d: has to pass and was skipped: no",
            ),
        ] {
            let found = differences_on_top(&NEW.replace(from, to), Rule::Newer);
            assert_eq!(found, [told]);
        }
    }

    #[test]
    fn what_makes_no_difference_is_refused_on_top() {
        for wrong in [
            "passed\n    m.C.a",
            "skipped (XRC): not offered\n    m.C.c",
            "gone: never there\n    m.C.d",
            "gone: renamed\n    m.C.a\npassed\n    m.C.a",
            "left out: other hardware\n    test_x",
        ] {
            let table = Table::parse(TABLE).unwrap();
            assert!(table.with(Table::parse(wrong).unwrap()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_table_or_a_wrong_line_is_refused() {
        for wrong in [
            "    m.C.a",
            "passed\n    m.C.a\n    m.C.a",
            "skipped (XRC)\n    m.C.a",
            "skipped (XRC): \n    m.C.a",
            "skipped (): why\n    m.C.a",
            "failed: why\n    m.C.a",
            "gone: \n    m.C.a",
            "seen: 1\nseen: 2",
        ] {
            assert!(Table::parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["passed\tm.C.a", "vanished\tm.C.a\t", "passed"] {
            assert!(outcomes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_tables_of_the_scenarios_can_be_read() {
        let table = || Table::parse(super::super::EXPECTED).unwrap();
        let sid = Table::parse(super::super::ON_SID).unwrap();
        assert!(sid.seen.is_some());
        for table in [table(), table().with(sid).unwrap()] {
            assert!(table.tests.values().any(|o| *o == Outcome::Passed));
            assert!(table.tests.keys().all(|test| !table
                .left_out
                .iter()
                .any(|m| test.starts_with(&format!("{m}.")))));
        }
    }
}
