//! Running jobs at both ends, with as few SSH sessions as can be: programs take longer to start in an emulated computer
//! than they run.

use super::candidate::{Job, Place, PORT};
use anyhow::{Context, Result};
use std::time::Duration;
use tbrdma_lab::{quote, Lab};

/// Against hanging.
const LIMIT: Duration = Duration::from_secs(240);

/// Where the script that starts servers is, with their output and state, in each host.
const DIR: &str = "/run/tbrdma-bench";
const SERVE: &str = include_str!("serve.sh");

/// Puts what this module needs into all hosts.
pub(crate) fn prepare(lab: &Lab) -> Result<()> {
    for host in lab.hosts() {
        lab.run(
            host,
            &format!(
                "mkdir -p {DIR} && printf %s {} > {DIR}/serve && chmod +x {DIR}/serve",
                quote(SERVE)
            ),
        )?;
    }
    Ok(())
}

/// Runs a job to its end and returns what the client printed.
pub(crate) fn run(lab: &Lab, place: Place, job: &Job) -> Result<String> {
    both(lab, place, job.server.as_deref(), &job.client)
}

/// The same, with strace counting the client's system calls; also returns what that printed.
pub(crate) fn run_traced(lab: &Lab, place: Place, job: &Job) -> Result<(String, String)> {
    let (_, host) = place.hosts();
    let client = format!(
        "strace --follow-forks --summary-only --output={DIR}/calls {}",
        job.client
    );
    let printed = both(lab, place, job.server.as_deref(), &client)?;
    let calls = lab.run(host, &format!("cat {DIR}/calls"))?;
    Ok((printed, calls))
}

/// Starts the server, if there is one, and runs the client to its end.
fn both(lab: &Lab, place: Place, server: Option<&str>, client: &str) -> Result<String> {
    let (there, here) = place.hosts();
    let Some(program) = server else {
        return lab.run_for(here, client, LIMIT);
    };
    let serve = format!("{DIR}/serve {PORT} {} {program}", LIMIT.as_secs());
    let printed = if there == here {
        lab.run_for(here, &format!("{serve} && {client}"), LIMIT)
    } else {
        lab.run_for(there, &serve, LIMIT)?;
        lab.run_for(here, client, LIMIT)
    };
    printed.or_else(|error| {
        let said = end_server(lab, there).unwrap_or_else(|error| format!("{error:#}"));
        Err(error).with_context(|| format!("the server on {there} said:\n{said}\nthe client"))
    })
}

/// Ends a server whose client has failed; returns what it printed.
fn end_server(lab: &Lab, host: &str) -> Result<String> {
    lab.run(
        host,
        &format!(
            "cd {DIR} || exit 1
sleep 1
[ ! -e busy ] || kill -KILL -- \"-$(cat group)\"
n=0
while [ -e busy ] && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.1; done
cat output"
        ),
    )
}
