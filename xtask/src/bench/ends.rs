//! Running jobs at both ends, with as few SSH sessions as can be: programs take longer to start in an emulated computer
//! than they run.

use super::candidate::{Job, Place, PORT};
use anyhow::{Context, Result};
use std::time::Duration;
use tbrdma_lab::{quote, Lab};

/// Against hanging.
const LIMIT: Duration = Duration::from_secs(240);

/// Where a server's output and state are, in its host.
const DIR: &str = "/run/tbrdma-bench";

/// Runs a job to its end and returns what the client printed.
pub(crate) fn run(lab: &Lab, place: Place, job: &Job) -> Result<String> {
    both(lab, place, job.server.as_deref(), &job.client)
}

/// The same, with strace counting the client's system calls; also returns what that printed.
pub(crate) fn run_traced(lab: &Lab, place: Place, job: &Job) -> Result<(String, String)> {
    let (_, host) = place.hosts();
    let client = format!(
        "mkdir -p {DIR} && strace --follow-forks --summary-only --output={DIR}/calls {}",
        job.client
    );
    let printed = both(lab, place, job.server.as_deref(), &client)?;
    let calls = lab.run(host, &format!("cat {DIR}/calls"))?;
    Ok((printed, calls))
}

/// Starts the server, if there is one, and runs the client to its end.
fn both(lab: &Lab, place: Place, server: Option<&str>, client: &str) -> Result<String> {
    let (there, here) = place.hosts();
    let printed = match server {
        Some(program) if there == here => {
            lab.run_for(here, &format!("{}\n{client}", serve(program)), LIMIT)
        }
        Some(program) => {
            lab.run_for(there, &serve(program), LIMIT)?;
            lab.run_for(here, client, LIMIT)
        }
        None => lab.run_for(here, client, LIMIT),
    };
    printed.or_else(|error| {
        if server.is_none() {
            return Err(error);
        }
        let said = end_server(lab, there).unwrap_or_else(|error| format!("{error:#}"));
        Err(error).with_context(|| format!("the server on {there} said:\n{said}\nthe client"))
    })
}

/// A script that starts a server in the background and ends when it listens.
fn serve(program: &str) -> String {
    let limit = LIMIT.as_secs();
    // Its process group is named by its first process, which writes its number down and becomes `timeout`.
    let server = format!("echo $$ > {DIR}/pid; exec timeout -k 5 {limit} {program}");
    format!(
        "mkdir -p {DIR} && cd {DIR} || exit 1
n=0
while [ -e busy ]; do
    n=$((n + 1))
    [ $n -lt 400 ] || {{ echo 'the server before this one does not end:'; cat output; exit 1; }}
    sleep 0.05
done
touch busy
{{ setsid sh -c {} > output 2>&1; rm busy; }} < /dev/null > /dev/null 2>&1 &
until ss -Hltn sport = :{PORT} | grep -q .; do
    [ -e busy ] || {{ cat output; exit 1; }}
    sleep 0.05
done",
        quote(&server)
    )
}

/// Ends a server whose client has failed; returns what it printed.
fn end_server(lab: &Lab, host: &str) -> Result<String> {
    lab.run(
        host,
        &format!(
            "cd {DIR} || exit 1
sleep 1
[ ! -e busy ] || kill -KILL -- -$(cat pid)
n=0
while [ -e busy ] && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.1; done
cat output"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::serve;

    #[test]
    fn the_script_is_one_that_shells_read() {
        let script = serve("ib_send_lat -F -s 64");
        let checked = std::process::Command::new("sh")
            .args(["-n", "-c", &script])
            .output()
            .unwrap();
        assert!(
            checked.status.success(),
            "{}",
            String::from_utf8_lossy(&checked.stderr)
        );
    }
}
