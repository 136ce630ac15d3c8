//! `corten store verify` and `corten store repair`: the damage of a stopped server's embedded store, and its cost.

use anyhow::{Result, bail};
use corten_store::{Finding, Loss};

use crate::directories::Directories;
use crate::flag_values::DirectoryFlags;
use crate::{instance, preflight};

/// Names every damage.
pub fn verify(flags: &DirectoryFlags) -> Result<()> {
    preflight::root_for("store verify")?;
    let directories = Directories::of(flags);
    let _lock = instance::acquire(&directories)?;
    let store = directories.data.join("store");
    let findings = corten_store::verify(&store)?;
    if findings.is_empty() {
        println!("{} is intact", store.display());
        return Ok(());
    }
    print(&findings);
    bail!("{} is damaged in {} places; save the rest by `corten store repair`", store.display(), findings.len())
}

/// Saves what is intact, and says what is not.
pub fn repair(flags: &DirectoryFlags) -> Result<()> {
    preflight::root_for("store repair")?;
    let directories = Directories::of(flags);
    let _lock = instance::acquire(&directories)?;
    let store = directories.data.join("store");
    let Some(repaired) = corten_store::repair(&store)? else {
        println!("{} is intact", store.display());
        return Ok(());
    };
    print(&repaired.findings);
    print_loss(&repaired.loss);
    println!("{} has {} keys at revision {}", store.display(), repaired.keys, repaired.revision);
    println!("the damaged files are in {}", repaired.aside.display());
    Ok(())
}

fn print(findings: &[Finding]) {
    for finding in findings {
        println!("{finding}");
    }
}

fn print_loss(loss: &Loss) {
    if loss.is_nothing() {
        println!("nothing is lost");
        return;
    }
    for (first, last) in &loss.revisions {
        println!("lost: revisions {first} to {last}");
    }
    for (key, revision) in &loss.keys {
        let key = String::from_utf8_lossy(key);
        match revision {
            0 => println!("lost: {key}, which is gone"),
            revision => println!("lost: the last change of {key}, which is as it was at revision {revision}"),
        }
    }
    if loss.is_incomplete {
        println!("lost: other keys, which the damaged records no longer name");
    }
}
