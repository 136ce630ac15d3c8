//! The termination message of a container: its file, or the end of its log if it failed and wrote none. Read once per
//! exited container.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use corten_api::k8s_openapi::api::core::v1::Pod;

use crate::config::Config;
use crate::container::config::termination_file;
use crate::logs::{line, regular};
use crate::pod::observed::{InstanceState, Observed};
use crate::pod::spec;

const MAX_MESSAGE: usize = 4096;
const MAX_LOG: u64 = 2048;
const MAX_LOG_LINES: usize = 80;

/// The messages read so far, by container id.
#[derive(Default)]
pub struct Messages {
    read: HashMap<String, String>,
}

impl Messages {
    /// Adds the message of every exited container.
    pub fn fill(&mut self, config: &Config, pod: &Pod, observed: &mut Observed) {
        self.read.retain(|id, _| observed.instances.iter().any(|instance| instance.id == *id));
        for instance in &mut observed.instances {
            if instance.state != InstanceState::Exited {
                continue;
            }
            let message = self.read.entry(instance.id.clone()).or_insert_with(|| {
                let file = termination_file(config, spec::uid(pod), &instance.name, instance.restart_count);
                let policy = spec::container(pod, &instance.name)
                    .and_then(|declared| declared.container.termination_message_policy.clone());
                let failed = instance.exit_code != 0;
                read(&file, Path::new(&instance.log_path), failed, policy.as_deref() == Some("FallbackToLogsOnError"))
            });
            if !message.is_empty() {
                instance.message = message.clone();
            }
        }
    }
}

fn read(file: &Path, log: &Path, failed: bool, fall_back: bool) -> String {
    let mut content = Vec::new();
    if let Ok(file) = regular::open(file) {
        // A message that cannot be read is empty.
        let _ = file.take(MAX_MESSAGE as u64).read_to_end(&mut content);
    }
    if content.is_empty() && failed && fall_back {
        return end_of_log(log).unwrap_or_default();
    }
    String::from_utf8_lossy(&content).into_owned()
}

fn end_of_log(path: &Path) -> std::io::Result<String> {
    let mut file = regular::open(path)?;
    let length = file.metadata()?.len();
    // Each line of the file has a timestamp besides its text, so more bytes are read.
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG * 4)))?;
    let mut content = Vec::new();
    file.take(MAX_LOG * 4).read_to_end(&mut content)?;
    let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
    let mut text = Vec::new();
    for raw in lines.iter().rev().take(MAX_LOG_LINES).rev() {
        if let Some(parsed) = line::parse(raw) {
            text.extend_from_slice(parsed.content);
            if !parsed.partial {
                text.push(b'\n');
            }
        }
    }
    let start = text.len().saturating_sub(MAX_LOG as usize);
    Ok(String::from_utf8_lossy(&text[start..]).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_file_first_then_the_log_of_a_failure() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("message");
        let log = root.path().join("0.log");
        fs::write(&log, "2026-01-02T03:04:05.000000006Z stderr F boom\n").unwrap();
        assert_eq!(read(&file, &log, true, true), "boom\n");
        assert_eq!(read(&file, &log, false, true), "");
        assert_eq!(read(&file, &log, true, false), "");
        fs::write(&file, "last words").unwrap();
        assert_eq!(read(&file, &log, true, true), "last words");
        fs::write(&file, "x".repeat(5000)).unwrap();
        assert_eq!(read(&file, &log, true, true).len(), MAX_MESSAGE);
    }
}
