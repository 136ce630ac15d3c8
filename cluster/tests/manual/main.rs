//! Every command of the manual, top to bottom, against one cluster on a machine of its own: a page with a command that
//! does not work fails here. Then the pages about the complete cluster: its metrics, its ports and the example files.

mod facts;
mod page;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use page::{Piece, Step};
use testkit::cluster::Cluster;
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// The pages in the order of the index.
const PAGES: [&str; 15] = [
    "install",
    "first-cluster",
    "machines",
    "etcd",
    "configuration",
    "networking",
    "storage",
    "clouds",
    "security",
    "operations",
    "monitoring",
    "capacity",
    "console",
    "troubleshooting",
    "versions",
];

/// The number of commands that no test runs. Each has its reason beside it; one more is a decision.
const NOT_RUN: usize = 45;

#[test]
fn every_command_of_the_manual_works() {
    let pages: Vec<(&str, Vec<Piece>)> = PAGES.iter().map(|name| (*name, page::read(&root(), name))).collect();
    let reasons: Vec<&String> = pages.iter().flat_map(|(_, pieces)| pieces).filter_map(Piece::reason).collect();
    assert!(reasons.iter().all(|reason| !reason.is_empty()), "a block that is not run says why");
    assert_eq!(reasons.len(), NOT_RUN, "commands that are not run: {reasons:#?}");
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    prepare(&cluster);
    for (name, pieces) in &pages {
        for piece in pieces {
            match piece {
                Piece::File { name, text } => std::fs::write(work(&cluster).join(name), text).expect("it is writable"),
                Piece::Run(step) => check(&cluster, name, step),
                Piece::NotRun { .. } => {}
            }
        }
        if *name == "monitoring" {
            facts::metrics_are_listed(&cluster);
            facts::ports_are_listed(&cluster);
            facts::examples_are_taken(&cluster, &root());
        }
    }
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

/// Returns the directory in which the commands run.
fn work(cluster: &Cluster) -> std::path::PathBuf {
    cluster.scratch().join("work")
}

/// Prepares the machine for the manual: `corten` and `kubectl` are programs, the data directory is `/var/lib/corten`,
/// and an archive of an image exists. The name of the data directory stays the test's own, because the cgroups are
/// named after it and are the host's.
fn prepare(cluster: &Cluster) {
    let programs = cluster.scratch().join("bin");
    for directory in [&programs, &work(cluster)] {
        std::fs::create_dir_all(directory).expect("the test's directory is writable");
    }
    let data = cluster.data_dir().display().to_string();
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in\n\
         up) shift; exec {CORTEN} up --timeout 600 --node-name one \"$@\" --data-dir {data};;\n\
         backup) case \"$2\" in verify|list|snapshot) exec {CORTEN} \"$@\";; esac;;\n\
         esac\ncase \"$1\" in\n\
         down|status|audit|logs|image|token|store|backup|restore|upgrade|support|certificate|ca|service-account-key|encryption-key) \
         exec {CORTEN} \"$@\" --data-dir {data};;\n\
         *) exec {CORTEN} \"$@\";;\nesac\n"
    );
    let program = programs.join("corten");
    std::fs::write(&program, script).expect("the test's directory is writable");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    std::os::unix::fs::symlink(tools::kubectl(), programs.join("kubectl")).expect("the directory is new");
    let archive = testkit::image::busybox_archive(cluster.scratch(), "docker.io/library/busybox:stable");
    std::fs::rename(archive, work(cluster).join("busybox.tar")).expect("the archive is there");
    let mount = ["mount", "--bind", &cluster.scratch().display().to_string(), "/var/lib"];
    let mounted = cluster.machine.command(&tools::busybox()).args(mount).status().expect("mount runs");
    assert!(mounted.success(), "the machine's /var/lib cannot be the test's");
}

/// Runs a line of shell on the machine.
fn shell(cluster: &Cluster, line: &str) -> Output {
    let path = format!("{}:{}", cluster.scratch().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut command: Command = cluster.machine.command(Path::new("/bin/sh"));
    // A process that enters the machine has the root as its working directory.
    let line = format!("cd {} || exit 1\n{line}", work(cluster).display());
    command.args(["-c", &line]).env("HOME", cluster.scratch()).env("PATH", path).env_remove("KUBECONFIG");
    command.stdin(Stdio::null()).output().expect("a shell runs")
}

/// Runs a command until it succeeds and prints what the page shows: names, rules and status follow a moment after their
/// objects.
fn check(cluster: &Cluster, page: &str, step: &Step) {
    let what = format!("docs/{page}.md:{}: {}", step.line, step.command);
    eprintln!("{what}");
    let mut last = String::new();
    wait::until(&what, wait::BOUND, || {
        let output = shell(cluster, &step.command);
        let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let failure = match (output.status.success(), page::first_missing(&step.shown, &printed)) {
            (true, None) => return Ok(()),
            (true, Some(line)) => format!("it does not say {line:?} but:\n{printed}"),
            (false, _) => format!("{}:\n{printed}", output.status),
        };
        if failure != last {
            eprintln!("not yet: {failure}");
            last.clone_from(&failure);
        }
        Err(failure)
    });
}
