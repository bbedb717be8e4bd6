//! perftest's programs, with every kind of operation, QP and option that goes together.

use crate::bench::wait_for_port;
use crate::{facts, stock, Bench};
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(180);

/// Messages of a run.
const COUNT: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Send,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Latency,
    Bandwidth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Rc,
    Uc,
    Ud,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    /// Nothing special.
    Plain,
    /// Waits for completions by events.
    Events,
    /// Connects by rdma_cm, over the cable.
    Manager,
    /// Bytes travel in the work request.
    Inline,
    /// Receives from a shared queue.
    SharedReceives,
    /// Four QPs at once.
    FourQps,
    /// Both ends send.
    Bidirectional,
    /// As a user types it first: no option at all but the device.
    Defaults,
}

use Feature::*;
use Figure::*;
use Transport::*;
use Verb::*;

const VERBS: [Verb; 6] = [Send, Write, WriteImm, Read, FetchAdd, CompareSwap];
const FIGURES: [Figure; 2] = [Latency, Bandwidth];
const TRANSPORTS: [Transport; 3] = [Rc, Uc, Ud];
const FEATURES: [Feature; 8] = [
    Plain,
    Events,
    Manager,
    Inline,
    SharedReceives,
    FourQps,
    Bidirectional,
    Defaults,
];

/// A place in the matrix.
#[derive(Clone, Copy, Debug)]
struct Run {
    verb: Verb,
    figure: Figure,
    transport: Transport,
    feature: Feature,
}

impl Run {
    /// All places that mean something; perftest itself refuses some.
    fn all() -> impl Iterator<Item = Self> {
        VERBS.into_iter().flat_map(|verb| {
            FIGURES.into_iter().flat_map(move |figure| {
                TRANSPORTS.into_iter().flat_map(move |transport| {
                    FEATURES.into_iter().map(move |feature| Self {
                        verb,
                        figure,
                        transport,
                        feature,
                    })
                })
            })
        })
    }

    /// The program and its options, without those that say where.
    fn program(self) -> String {
        let verb = match self.verb {
            Send => "send",
            Write | WriteImm => "write",
            Read => "read",
            FetchAdd | CompareSwap => "atomic",
        };
        let figure = match self.figure {
            Latency => "lat",
            Bandwidth => "bw",
        };
        let mut words = format!("ib_{verb}_{figure} -F");
        let mut add = |more: &str| {
            words.push(' ');
            words.push_str(more);
        };
        match self.verb {
            WriteImm => add("--write_with_imm"),
            FetchAdd => add("-A FETCH_AND_ADD"),
            CompareSwap => add("-A CMP_AND_SWAP"),
            Send | Write | Read => (),
        }
        match self.transport {
            Rc => (),
            Uc => add("-c UC"),
            Ud => add("-c UD"),
        }
        match self.feature {
            Plain | Defaults => (),
            Events => add("-e"),
            Manager => add("-R"),
            Inline => add("-I 128"),
            SharedReceives => add("--use-srq"),
            FourQps => add("-q 4"),
            Bidirectional => add("-b"),
        }
        if self.feature != Defaults {
            if let (Some(size), false) = (self.size(), self.is_atomic()) {
                add(&format!("-s {size}"));
            }
            add(&format!("-n {COUNT}"));
        }
        words
    }

    fn is_atomic(self) -> bool {
        matches!(self.verb, FetchAdd | CompareSwap)
    }

    /// Bytes of a message, where that is known.
    fn size(self) -> Option<u32> {
        match (self.feature, self.figure) {
            _ if self.is_atomic() => Some(8),
            (Defaults, _) => None,
            (Inline, _) => Some(128),
            (_, Latency) => Some(64),
            (_, Bandwidth) if self.transport == Ud => Some(2048),
            (_, Bandwidth) => Some(16384),
        }
    }

    /// Words of perftest when it refuses to run this.
    fn refusal(self) -> Option<&'static str> {
        let one_sided = matches!(self.verb, Read | FetchAdd | CompareSwap);
        match (self.transport, self.feature) {
            (Ud, _) if self.verb != Send => Some("UD connection only possible in SEND verb"),
            (Uc, _) if one_sided => Some("UC connection not possible in READ/ATOMIC verbs"),
            (Uc, Manager) => Some("UC is not supported in librdmacm"),
            (_, FourQps) if self.figure == Latency => {
                Some("Multiple QPs only available on bw tests")
            }
            (_, Bidirectional) if self.figure == Latency => {
                Some("Bidirectional is only available in BW test")
            }
            (_, Inline) if one_sided => Some("Inline feature not available on READ/Atomic verbs"),
            (_, SharedReceives) if self.verb != Send => Some("Using SRQ only"),
            (_, Events) if self.verb == Write => Some("Events feature not available on WRITE verb"),
            _ => None,
        }
    }

    /// Looks at what an end printed.
    fn plausible(self, printed: &str) -> Result<()> {
        // The cable has 40 Gb/s in each direction, and nothing is faster than light.
        let directions = if self.feature == Bidirectional {
            2.0
        } else {
            1.0
        };
        let most = directions * 40e9 / 8.0 / f64::from(1 << 20);
        match self.figure {
            Latency => {
                let found = facts::perftest_latency(printed)?;
                ensure!(
                    found.median_us > 0.1 && found.median_us <= found.p99_us,
                    "{found:?}"
                );
            }
            Bandwidth => {
                let found = facts::perftest_bandwidth(printed)?;
                ensure!(found.mib_per_s < most, "{found:?}");
            }
        }
        Ok(())
    }
}

/// What is run each time: what `lab-verbs` does not run anyway.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    matrix(bench, |run| {
        let options = matches!(run.feature, Manager | FourQps | Bidirectional);
        let operations = matches!(run.verb, Send | Write | Read);
        run.transport == Rc
            && run.figure == Bandwidth
            && ((options && operations) || (run.feature == Plain && run.verb == WriteImm))
    })
}

/// Everything, what perftest refuses included: a quarter of an hour.
pub(crate) fn full(bench: &mut Bench) -> Result<()> {
    matrix(bench, |_| true)
}

fn matrix(bench: &mut Bench, wanted: fn(Run) -> bool) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    stock::addresses(lab)?;
    let before = stock::counted(lab, "tx_retransmits")?;
    let mut failures = Vec::new();
    let mut done = 0;
    for run in Run::all().filter(|run| wanted(*run)) {
        let outcome = match run.refusal() {
            Some(words) => refused(lab, run, words),
            None => facts::until_measured(|| run_at_both_ends(lab, run)),
        };
        done += 1;
        if let Err(error) = outcome {
            failures.push(format!("{}: {error:#}", run.program()));
        }
    }
    ensure!(
        failures.is_empty(),
        "{} of {done} runs failed:\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    let after = stock::counted(lab, "tx_retransmits")?;
    ensure!(
        after == before,
        "frames were repeated on a cable that loses none: {before} before, {after} now"
    );
    Ok(())
}

/// perftest has to say that it cannot do this; then it is not our device that cannot.
fn refused(lab: &Lab, run: Run, words: &str) -> Result<()> {
    let script = format!("{} -d tbrdma0 -x 0", run.program());
    let (status, said) = lab.start("a", &script, LIMIT)?.outcome()?;
    ensure!(
        status != Some(0) && said.contains(words),
        "perftest was to refuse this with \"{words}\", but ended with {status:?}:\n{said}"
    );
    Ok(())
}

fn run_at_both_ends(lab: &Lab, run: Run) -> Result<()> {
    let program = if run.feature == Manager {
        run.program()
    } else {
        format!("{} -d tbrdma0 -x 0", run.program())
    };
    let address = if run.feature == Manager {
        stock::ADDRESS_OF_A
    } else {
        "a"
    };
    let printed = stock::both_at(lab, &program, "a", "b", address, LIMIT)?;
    run.plausible(&printed.client)
        .with_context(|| format!("the client said:\n{}", printed.client))?;
    if run.verb == Send || run.feature == Bidirectional {
        run.plausible(&printed.server)
            .with_context(|| format!("the server said:\n{}", printed.server))?;
    }
    Ok(())
}
