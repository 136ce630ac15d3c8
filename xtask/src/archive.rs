//! The distribution's package archive: fetches packages, each compared with its digest before anything of it is used.
//!
//! The digests are not all in a table here, because an archive changes. A point release or a security update replaces a
//! package, the old one is removed, and a table would break the tests of all developers until one of them edits it. The
//! chain of apt is permanent: the release's key, which the host has installed, signs the release file; that has the
//! digest of the index; the index has the digest of each package. So:
//!
//! - unsigned, weak and downgraded sources are refused, whatever the host's configuration says, and so is a source that the
//!   host trusts without a signature;
//! - the digest that the signed index gives for the package is asked for, and the file that came is compared with it;
//! - a version that is known to this file has one content for ever: it must have the digest that stands here;
//! - what was fetched is written to `fetched.txt` beside the tools: package, version, digest.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

/// The files that this project was tested with, by their digests.
const KNOWN: &[(&str, &str)] = &[
    (
        "busybox-static_1%3a1.35.0-4+deb12u1+b1_amd64.deb",
        "3d3fdbe91d4660c873e14b092c213fe81c1da6362daa236eb25d0171eb108744",
    ),
    ("containerd_1.6.20~ds1-1+deb12u3_amd64.deb", "8669d264eeb0fcdb4a0b1ba436ab88ec5dafde4a66e1278ec279d830db4c2216"),
    (
        "containernetworking-plugins_1.1.1+ds1-3+b5_amd64.deb",
        "4cac8143474d1249b19f7b0e80b8d0daaa6dfdaa8bd514bc468d38d4a108099f",
    ),
    ("crun_1.8.1-1+deb12u1_amd64.deb", "34bdcf1a097ec34da2e7b77b65fa351134702af775174af22555b16421709c51"),
    ("etcd-server_3.5.16-4_amd64.deb", "0875921bb0d023f2af9b8e15cdfbe417a03e65731345fb832c40f9c2dd72967b"),
    ("iptables_1.8.9-2_amd64.deb", "2928d3ca6ca8a3dc3f423f6752822b1f3614a5ba609ff7806bcba4449ffe90e1"),
    ("kubectl_1.32.3+ds-2_amd64.deb", "9825aaf4c14913027aae04af8688e580459f781c829bd5de00cc4dc2cc5a867f"),
    ("libinih1_55-1_amd64.deb", "1286ddab2ef1050389e585ad3bfd0a0d9bdd26475003a33b4eec884bccd50477"),
    ("libmnl0_1.0.4-3_amd64.deb", "4581f42e3373cb72f9ea4e88163b17873afca614a6c6f54637e95aa75983ea7c"),
    ("libnftnl11_1.2.4-2_amd64.deb", "9e619e1470a1915264e906020f3bfc046fd8458043b1342686d997b5078213af"),
    ("liburcu8_0.13.2-1_amd64.deb", "8647049698200fb5e20a130a09059b51878bb98643a120c7b0c6cbfd3f9b42dd"),
    ("libxtables12_1.8.9-2_amd64.deb", "cb841d66950a43af4a398625313d2f3da9065299c9738538de6c2c3495857040"),
    ("libyajl2_2.1.0-3+deb12u2_amd64.deb", "b512a6efbe735e7c731185a1b3ea477ff306f0c3f6aa2970e85b12f01fe8063b"),
    (
        "linux-image-6.1.0-55-cloud-amd64_6.1.192-1_amd64.deb",
        "ad3018bdd76199acbdb89bdbd37e849be0614f3829aa85d0eb6154fee951cd0b",
    ),
    (
        "qemu-system-common_1%3a7.2+dfsg-7+deb12u18+b3_amd64.deb",
        "cc6bbe2d5e0b9ed6306f054008967b0564dc06b2558ea5142590f522ccca9b2b",
    ),
    (
        "qemu-system-data_1%3a7.2+dfsg-7+deb12u18_all.deb",
        "8d7647370573fe9871949acf60d0c000546c2c089008a70accb3d015781e6bf1",
    ),
    (
        "qemu-system-x86_1%3a7.2+dfsg-7+deb12u18+b3_amd64.deb",
        "faf17e2cc7323acbb36bbd6329b61080e7ead0ebb92d33155f41b17d8db6fe15",
    ),
    ("runc_1.1.5+ds1-1+deb12u1_amd64.deb", "a00351f8c0318de0b424ecf5cd0fdb69880a89f3511cae4f6fff7de3e57881c5"),
    ("seabios_1.16.2-1_all.deb", "08e5b3f761379f17a6051731cafa03e97686049e2cc1b8bdccc5a910646e2d8e"),
    ("xfsprogs_6.1.0-1_amd64.deb", "e2d2a60dd29d568b5724b66d9ff864305cec61a15e6ba842079398524e1c5718"),
];

/// The options that make apt refuse unsigned sources, whatever the host's configuration says.
const SIGNED_ONLY: [&str; 4] = [
    "APT::Get::AllowUnauthenticated=false",
    "Acquire::AllowInsecureRepositories=false",
    "Acquire::AllowWeakRepositories=false",
    "Acquire::AllowDowngradeToInsecureRepositories=false",
];

/// The record of fetched packages.
const RECORD: &str = "fetched.txt";

/// A package archive, used by apt with a state of its own.
pub struct Archive {
    options: Vec<String>,
    dir: PathBuf,
}

/// A package as the signed index describes it.
#[derive(Debug, PartialEq, Eq)]
struct Indexed {
    /// The name that apt gives the file.
    file: String,
    size: u64,
    digest: String,
}

impl Archive {
    /// Returns the archive of the host's configuration.
    pub fn of_host(dir: &Path) -> Result<Archive> {
        let archive = Archive { options: Vec::new(), dir: dir.to_owned() };
        archive.refuse_trusted()?;
        archive.apt(&["update", "-qq"])?;
        Ok(archive)
    }

    /// Returns another release of the archive that the host uses.
    pub fn of_release(dir: &Path, release: &str) -> Result<Archive> {
        let state = dir.join(format!("apt-{release}"));
        for sub in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(state.join(sub))?;
        }
        let list = state.join("sources.list");
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        std::fs::write(&list, format!("deb [signed-by={keyring}] {} {release} main\n", host_archive()?))?;
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=-".into(),
            format!("Dir::State::Lists={}/lists", state.display()),
            format!("Dir::Cache={}/cache", state.display()),
            // The packages that the host has installed must not influence the chosen version.
            "Dir::State::status=/dev/null".into(),
        ];
        let options = options.iter().flat_map(|option| ["-o".into(), option.clone()]).collect();
        let archive = Archive { options, dir: dir.to_owned() };
        archive.apt(&["update", "-qq"])?;
        Ok(archive)
    }

    /// Downloads a package whose digest is that of the index, and returns its path.
    pub fn download(&self, package: &str) -> Result<PathBuf> {
        // A file of an earlier run would pass for the new one.
        let path = self.dir.join(&self.index(&[package])?[0].file);
        let _ = std::fs::remove_file(&path);
        self.download_all(&[package])?;
        Ok(path)
    }

    /// Downloads packages, and returns their paths, in their order. An existing file with its digest is not fetched
    /// again.
    pub fn download_all(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        if packages.is_empty() {
            return Ok(Vec::new());
        }
        let indexed = self.index(packages)?;
        let path = |indexed: &Indexed| self.dir.join(&indexed.file);
        let is_there =
            |indexed: &Indexed| std::fs::read(path(indexed)).is_ok_and(|bytes| check_content(indexed, &bytes).is_ok());
        let wanted =
            packages.iter().zip(&indexed).filter(|(_, indexed)| !is_there(indexed)).map(|(package, _)| *package);
        let wanted: Vec<&str> = wanted.collect();
        if !wanted.is_empty() {
            self.apt(&[&["download", "-qq"], wanted.as_slice()].concat())?;
        }
        for (package, indexed) in packages.iter().zip(&indexed) {
            let bytes = std::fs::read(path(indexed)).with_context(|| format!("apt did not bring {}", indexed.file))?;
            if let Err(error) = check_content(indexed, &bytes) {
                std::fs::remove_file(path(indexed))?;
                return Err(error);
            }
            self.record(package, indexed)?;
        }
        Ok(indexed.iter().map(path).collect())
    }

    /// Returns the names of packages and of all their dependencies, on a system without any packages.
    pub fn closure(&self, packages: &[&str]) -> Result<Vec<String>> {
        let nothing = ["-o", "Dir::State::status=/dev/null", "-o", "APT::Install-Recommends=false"];
        let text = self.apt(&[&["install", "--print-uris", "-qq", "-y"], &nothing[..], packages].concat())?;
        let names = text.lines().filter(|line| line.starts_with('\'')).filter_map(|line| {
            let file = line.split_whitespace().nth(1)?;
            Some(file.split_once('_')?.0.to_owned())
        });
        Ok(names.collect())
    }

    /// Returns the entries of the signed index for packages, each of a known version unchanged.
    fn index(&self, packages: &[&str]) -> Result<Vec<Indexed>> {
        // In another directory: apt prints nothing for packages that are in its own.
        let text = self.apt_in(Path::new("/"), &[&["download", "--print-uris"], packages].concat())?;
        let mut found = Vec::new();
        for package in packages {
            let prefix = format!("{package}_");
            let indexed = text.lines().filter_map(parse_index).find(|indexed| indexed.file.starts_with(&prefix));
            let indexed = indexed.with_context(|| format!("the archive gives no digest for {package}"))?;
            check_known(&indexed, KNOWN)?;
            found.push(indexed);
        }
        Ok(found)
    }

    /// Records a fetched package, in place of its earlier record.
    fn record(&self, package: &str, indexed: &Indexed) -> Result<()> {
        let path = self.dir.join(RECORD);
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let is_other = |line: &&str| line.split(' ').next() != Some(package);
        let mut lines: Vec<String> = before.lines().filter(is_other).map(str::to_owned).collect();
        lines.push(format!("{package} {} sha256:{}", version_of(&indexed.file), indexed.digest));
        lines.sort_unstable();
        std::fs::write(path, lines.join("\n") + "\n")?;
        Ok(())
    }

    /// Refuses sources that the host trusts without a signature: apt does not verify them.
    fn refuse_trusted(&self) -> Result<()> {
        let entries = self.apt(&["indextargets", "--format", "$(SOURCESENTRY)", "Identifier: Packages"])?;
        for entry in entries.lines() {
            let path = entry.rsplit_once(':').map_or(entry, |(path, _)| path);
            let text = std::fs::read_to_string(path).unwrap_or_default();
            ensure!(!trusts_blindly(&text), "{path} trusts a source without a signature; take `trusted` out of it");
        }
        Ok(())
    }

    fn apt(&self, arguments: &[&str]) -> Result<String> {
        self.apt_in(&self.dir, arguments)
    }

    /// Runs apt with retries: a mirror may be slow to answer, and another process may hold apt's lock.
    fn apt_in(&self, dir: &Path, arguments: &[&str]) -> Result<String> {
        for seconds in [2, 5, 10, 20, 40] {
            let error = match self.try_apt(dir, arguments) {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            eprintln!("{error:#}; it is tried again in {seconds} s");
            std::thread::sleep(std::time::Duration::from_secs(seconds));
        }
        self.try_apt(dir, arguments)
    }

    fn try_apt(&self, dir: &Path, arguments: &[&str]) -> Result<String> {
        let output = Command::new("apt-get")
            .args(&self.options)
            .args(SIGNED_ONLY.iter().flat_map(|option| ["-o", option]))
            .args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=5"])
            .args(arguments)
            .current_dir(dir)
            .output()
            .context("apt-get cannot be run")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "apt-get {} failed: {}", arguments.join(" "), errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Reads `'URI' FILE SIZE SHA256:DIGEST`.
fn parse_index(text: &str) -> Option<Indexed> {
    let line = text.lines().find(|line| line.starts_with('\''))?;
    let [_, file, size, digest] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let digest = digest.strip_prefix("SHA256:").filter(|digest| digest.len() == 64)?;
    let is_plain = !file.contains('/') && file.ends_with(".deb");
    is_plain.then_some(Indexed { file: file.to_owned(), size: size.parse().ok()?, digest: digest.to_owned() })
}

/// Refuses a known version whose file has changed.
fn check_known(indexed: &Indexed, known: &[(&str, &str)]) -> Result<()> {
    let pinned = known.iter().find(|(file, _)| *file == indexed.file);
    match pinned {
        Some((file, digest)) if *digest != indexed.digest => {
            bail!("the archive's {file} has the digest {}, and not {digest}", indexed.digest)
        }
        _ => Ok(()),
    }
}

fn check_content(indexed: &Indexed, bytes: &[u8]) -> Result<()> {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(
        bytes.len() as u64 == indexed.size && digest == indexed.digest,
        "{} has {} bytes and the digest {digest}, and not {} bytes and {}",
        indexed.file,
        bytes.len(),
        indexed.size,
        indexed.digest
    );
    Ok(())
}

/// Returns the version in a file's name, with its epoch.
fn version_of(file: &str) -> String {
    file.split('_').nth(1).unwrap_or_default().replace("%3a", ":")
}

/// Reports whether a list of sources has `trusted=yes`, in either of apt's forms.
fn trusts_blindly(text: &str) -> bool {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let plain = lines.map(|line| line.replace([' ', '\t'], "").to_ascii_lowercase());
    plain.into_iter().any(|line| line.contains("trusted=yes") || line.starts_with("trusted:yes"))
}

/// Returns the address of the Debian archive that the host is configured with.
fn host_archive() -> Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Identifier: Packages"])
        .output()
        .context("apt-get cannot be run")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(uri, origin)| *origin == "Debian" && !uri.contains("security"))
        .map(|(uri, _)| uri.to_owned())
        .context("this host is not configured with a Debian archive; put a kubectl of 1.32 or later on PATH")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn indexed() -> Indexed {
        parse_index(&format!("'http://a/b_1%3a2-3_amd64.deb' b_1%3a2-3_amd64.deb 0 SHA256:{EMPTY}\n")).unwrap()
    }

    #[test]
    fn the_index_must_give_a_digest() {
        assert_eq!((indexed().size, indexed().digest.as_str()), (0, EMPTY));
        assert_eq!(version_of(&indexed().file), "1:2-3");
        for line in ["", "'http://a' b.deb 3 ", "'http://a' b.deb 3 MD5Sum:0", "'http://a' ../b.deb 3 SHA256:0"] {
            assert_eq!(parse_index(line), None, "{line}");
        }
    }

    #[test]
    fn only_the_bytes_of_the_digest_are_used() {
        assert!(check_content(&indexed(), b"").is_ok());
        assert!(check_content(&indexed(), b"x").is_err());
    }

    #[test]
    fn a_known_version_never_changes() {
        let file = indexed().file;
        assert!(check_known(&indexed(), &[(&file, EMPTY)]).is_ok());
        assert!(check_known(&indexed(), &[("other", "0")]).is_ok());
        assert!(check_known(&indexed(), &[(&file, "0")]).is_err());
    }

    #[test]
    fn sources_without_a_signature_are_seen() {
        assert!(trusts_blindly("deb [ trusted=yes ] http://a b main\n"));
        assert!(trusts_blindly("Types: deb\nTrusted: yes\n"));
        assert!(!trusts_blindly("# trusted=yes\ndeb [signed-by=/k] http://a b main\nTrusted: no\n"));
    }
}
