//! A machine with a tbrdma device that has neither a module nor a cable.
//!
//! Without the kernel's RDMA netlink, libibverbs takes its devices from sysfs, and it can be told
//! where that is. The device node is /dev/null, which takes every command and answers nothing, that
//! is with zeroes. A mount namespace keeps the node out of the real /dev.

// Each test program uses a part of this.
#![allow(dead_code)]

use seccompiler::{
    apply_filter, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Against hanging only.
const LIMIT: Duration = Duration::from_secs(60);

/// Puts the device node in place, then becomes the program.
const ENTER: &str = r#"set -e
mount --bind /dev/null "$TBRDMA_TEST_DEV/null"
mount --bind /dev/null "$TBRDMA_TEST_DEV/infiniband/uverbs0"
mount --rbind "$TBRDMA_TEST_DEV" /dev
exec "$@""#;

/// The folder in which cargo put this program.
fn built() -> PathBuf {
    let mut path = std::env::current_exe().expect("the path of this program");
    path.pop();
    path
}

/// The library under test.
pub fn provider() -> PathBuf {
    let path = built().join("libtbrdma.so");
    assert!(path.exists(), "cargo did not build {}", path.display());
    path
}

/// The program that opens the device.
fn opener() -> PathBuf {
    let path = built().with_file_name("examples").join("open_device");
    assert!(path.exists(), "cargo did not build {}", path.display());
    path
}

/// Whose libibverbs is used.
#[derive(Clone, Debug)]
pub enum System {
    /// The one of this machine.
    Host,
    /// The one in this root file system, with its C library.
    Root(PathBuf),
}

impl System {
    /// Folders with its libraries.
    fn folders(&self) -> Vec<PathBuf> {
        let arch = std::env::consts::ARCH;
        let root = match self {
            Self::Host => Path::new("/"),
            Self::Root(root) => root,
        };
        [format!("usr/lib/{arch}-linux-gnu"), "usr/lib64".to_string()]
            .into_iter()
            .map(|folder| root.join(folder))
            .filter(|folder| folder.exists())
            .collect()
    }

    /// Its libibverbs.
    pub fn libibverbs(&self) -> PathBuf {
        let found = self
            .folders()
            .into_iter()
            .map(|folder| folder.join("libibverbs.so.1"))
            .find(|path| path.exists());
        found.unwrap_or_else(|| panic!("{self:?} has no libibverbs.so.1 (package libibverbs1)"))
    }

    /// A program that runs with its libraries, those in `first` before all.
    fn program(&self, program: &Path, first: &Path) -> Vec<PathBuf> {
        let Self::Root(root) = self else {
            return vec![program.to_owned()];
        };
        let mut path = first.as_os_str().to_owned();
        for folder in self.folders() {
            path.push(":");
            path.push(folder);
        }
        vec![
            self.loader(root),
            "--library-path".into(),
            path.into(),
            program.to_owned(),
        ]
    }

    /// Its dynamic linker.
    fn loader(&self, root: &Path) -> PathBuf {
        let name = match std::env::consts::ARCH {
            "x86_64" => "ld-linux-x86-64.so.2",
            "aarch64" => "ld-linux-aarch64.so.1",
            other => panic!("the name of the dynamic linker is not known for {other}"),
        };
        let mut places = self.folders();
        places.push(root.join("usr/lib"));
        let found = places
            .into_iter()
            .map(|folder| folder.join(name))
            .find(|path| path.exists());
        found.unwrap_or_else(|| panic!("{} has no {name}", root.display()))
    }
}

/// What a program printed.
pub struct Outcome {
    pub success: bool,
    pub out: String,
    pub err: String,
}

impl Outcome {
    /// The device was opened, and all worked.
    pub fn assert_works(&self) {
        assert!(self.success, "{self}");
        let wanted =
            "ok found\nok open\nok poll_cq\nok req_notify_cq\nok post_send\nok post_recv\n\
                      ok query_device\nok query_port\nok alloc_pd\nok reg_mr\nok create_cq is refused\n\
                      ok create_qp is refused\nok create_qp_ex is refused\n\
                      ok create_qp_ex knows what it has not\nok query_qp\nok modify_qp\n\
                      ok create_srq is refused\nok rereg_mr\nok reg_dmabuf_mr asks the kernel\n\
                      ok dereg_mr\nok dealloc_pd\nok close\n";
        assert_eq!(self.out, wanted, "{self}");
    }

    /// The program ended with this complaint.
    pub fn assert_fails(&self, complaint: &str) {
        assert!(!self.success && self.err.contains(complaint), "{self}");
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "printed:\n{}and complained:\n{}", self.out, self.err)
    }
}

/// The machine.
pub struct Machine {
    system: System,
    dir: TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Machine {
    /// One whose device speaks our version of the kernel's interface.
    pub fn new(system: &System) -> Self {
        Self::with_abi(system, tbrdma_uapi::ABI_VERSION)
    }

    /// One whose device speaks this version.
    pub fn with_abi(system: &System, version: u32) -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        let put = |name: &str, content: &str| {
            let path = at(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let verbs = "sys/class/infiniband_verbs";
        put(&format!("{verbs}/abi_version"), "6\n");
        put(&format!("{verbs}/uverbs0/ibdev"), "tbrdma0\n");
        // The number of /dev/null
        put(&format!("{verbs}/uverbs0/dev"), "1:3\n");
        let version = format!("{version}\n");
        put(&format!("{verbs}/uverbs0/abi_version"), &version);
        let device = "sys/class/infiniband/tbrdma0";
        put(&format!("{device}/node_type"), "1: CA\n");
        put(&format!("{device}/node_guid"), "0200:00ff:fe00:0001\n");
        put("dev/null", "");
        put("dev/infiniband/uverbs0", "");
        // As packages do: a link for each private ABI.
        fs::create_dir(at("lib")).unwrap();
        for abi in tbrdma::layout::PRIVATE_ABIS {
            let link = at(&format!("lib/libtbrdma-rdmav{abi}.so"));
            std::os::unix::fs::symlink(provider(), link).unwrap();
        }
        Self {
            system: system.clone(),
            environment: vec![("TBRDMA_TEST_MATCH_NAME", "1".to_string())],
            dir,
        }
    }

    /// With this in the environment.
    pub fn set(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_string()));
        self
    }

    /// Without the test's way of recognising the device.
    pub fn without_name_match(mut self) -> Self {
        self.environment.clear();
        self
    }

    /// With a libibverbs whose private ABI is one that nobody knows.
    pub fn with_unknown_libibverbs(self) -> Self {
        let mut library = fs::read(self.system.libibverbs()).unwrap();
        let known = b"verbs_register_driver_";
        let places: Vec<usize> = library
            .windows(known.len())
            .enumerate()
            .filter_map(|(at, window)| (window == known).then_some(at))
            .collect();
        assert!(!places.is_empty(), "no registration function was found");
        for at in places {
            library[at..at + known.len()].copy_from_slice(b"verbs_register_drivex_");
        }
        let path = self.dir.path().join("lib/libibverbs.so.1");
        fs::write(path, library).unwrap();
        self
    }

    /// Opens the device.
    pub fn open(&self) -> Outcome {
        let lib = self.dir.path().join("lib");
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args(["--mount", "sh", "-c", ENTER, "sh"])
            .args(self.system.program(&opener(), &lib))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LD_LIBRARY_PATH", &lib)
            .env("TBRDMA_TEST_DEV", self.dir.path().join("dev"))
            .env("SYSFS_PATH", self.dir.path().join("sys"))
            .env("IBV_DRIVERS", lib.join("libtbrdma"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        if matches!(self.system, System::Root(_)) {
            // Not for the shell, which is the host's.
            command.env_remove("LD_LIBRARY_PATH");
        }
        run(command)
    }
}

fn is_root() -> bool {
    // SAFETY: has no conditions.
    unsafe { libc::geteuid() == 0 }
}

/// Runs a program for which the kernel has no RDMA netlink, whether it has or not.
fn run(mut command: Command) -> Outcome {
    let filter = no_rdma_netlink();
    // SAFETY: between fork and exec; two system calls that touch no memory of the parent.
    unsafe {
        command.pre_exec(move || apply_filter(&filter).map_err(std::io::Error::other));
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare (package util-linux) starts");
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    Outcome {
        success: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn no_rdma_netlink() -> BpfProgram {
    let is = |argument, value: i32| {
        let value = u64::try_from(value).unwrap();
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).unwrap()
    };
    let rdma = SeccompRule::new(vec![is(0, libc::AF_NETLINK), is(2, libc::NETLINK_RDMA)]).unwrap();
    let filter = SeccompFilter::new(
        [(libc::SYS_socket, vec![rdma])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPROTONOSUPPORT as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    filter.unwrap().try_into().unwrap()
}
