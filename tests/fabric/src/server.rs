//! The control socket, and the fabric's life.

use crate::device::{self, lock};
use crate::fabric::Fabric;
use crate::protocol::{Request, Response};
use crate::spec;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Runs a fabric until it is asked to quit. Its sockets come to lie in `dir`: `HOST.sock` for the VMM of
/// each host, `control.sock` for requests.
///
/// # Errors
///
/// When the cables do not fit the hosts, or a socket cannot be made.
pub fn run(dir: &Path, hosts: &[String], cables: &[spec::Cable]) -> Result<(), String> {
    let (fabric, shared) = Fabric::new(hosts, cables)?;
    let fabric = Arc::new(Mutex::new(fabric));
    for (host, shared) in shared.into_iter().enumerate() {
        let fabric = Arc::clone(&fabric);
        let socket = dir.join(format!("{}.sock", hosts[host]));
        std::thread::spawn(move || {
            if let Err(error) = device::serve(&fabric, host, &socket, &shared) {
                log::error!("cannot serve {}: {error}", socket.display());
                std::process::exit(1);
            }
        });
    }
    let worker = Arc::clone(&fabric);
    std::thread::spawn(move || work(&worker));

    let socket = dir.join("control.sock");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)
        .map_err(|e| format!("cannot make {}: {e}", socket.display()))?;
    for stream in listener.incoming() {
        let stream = stream.map_err(|e| format!("{}: {e}", socket.display()))?;
        let fabric = Arc::clone(&fabric);
        std::thread::spawn(move || {
            if let Err(error) = talk(&fabric, stream) {
                log::warn!("control connection: {error}");
            }
        });
    }
    Ok(())
}

/// Looks for doorbells, the more often the more there is to do: an idle fabric takes no CPU to speak of.
fn work(fabric: &Mutex<Fabric>) {
    /// While frames move.
    const BUSY: Duration = Duration::from_micros(20);
    /// After some tries without any.
    const CALM: Duration = Duration::from_micros(200);
    /// After more.
    const IDLE: Duration = Duration::from_millis(1);
    /// After some seconds.
    const ASLEEP: Duration = Duration::from_millis(3);
    // Sleeps are otherwise 50 us longer. If it fails they just are.
    let _ = nix::sys::prctl::set_timerslack(1000);
    let mut quiet = 0u32;
    loop {
        let moved = lock(fabric).work(Instant::now());
        quiet = if moved { 0 } else { quiet.saturating_add(1) };
        std::thread::sleep(match quiet {
            0..200 => BUSY,
            200..2000 => CALM,
            2000..7000 => IDLE,
            _ => ASLEEP,
        });
    }
}

fn talk(fabric: &Mutex<Fabric>, stream: UnixStream) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let (response, quit) = match serde_json::from_str(&line?) {
            Ok(request) => (answer(fabric, &request), request == Request::Quit),
            Err(error) => (Response::Error(format!("not understood: {error}")), false),
        };
        let mut text = serde_json::to_string(&response)?;
        text.push('\n');
        writer.write_all(text.as_bytes())?;
        if quit {
            std::process::exit(0);
        }
    }
    Ok(())
}

fn answer(fabric: &Mutex<Fabric>, request: &Request) -> Response {
    let mut fabric = lock(fabric);
    let result = match request {
        Request::Plug { cable } => fabric.set_plugged(*cable, true),
        Request::Unplug { cable } => fabric.set_plugged(*cable, false),
        Request::Counters => return Response::Counters(fabric.counters()),
        Request::SetFault {
            cable,
            direction,
            fault,
        } => fabric.set_fault(*cable, *direction, fault),
        Request::ClearFaults => {
            fabric.clear_faults();
            Ok(())
        }
        Request::StartPcap { cable, path } => fabric.start_pcap(*cable, path),
        Request::StopPcap | Request::Quit => fabric.stop_pcap().map_err(|e| e.to_string()),
    };
    match result {
        Ok(()) => Response::Done,
        Err(reason) => Response::Error(reason),
    }
}
