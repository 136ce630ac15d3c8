//! Runs one plugin: writes its configuration, reads its result or its error.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::error::CniError;

/// The time that a plugin may take: as long as a kubelet waits for a pod's network.
const TIMEOUT: Duration = Duration::from_secs(110);

/// The parameters of a call, by the specification.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub container_id: String,
    pub netns: PathBuf,
    pub interface: String,
    pub arguments: String,
}

/// The directories of plugins, which finds and runs them.
#[derive(Clone, Debug)]
pub(crate) struct Plugins {
    pub directories: Vec<PathBuf>,
}

impl Plugins {
    fn find(&self, plugin: &str) -> Result<PathBuf, CniError> {
        // The type is a name; a path would lead out of the directories.
        let name = Path::new(plugin).file_name().filter(|name| *name == plugin);
        let found = name.and_then(|name| self.directories.iter().map(|dir| dir.join(name)).find(|path| path.is_file()));
        found.ok_or_else(|| CniError::NoPlugin(plugin.to_owned()))
    }

    /// Runs a plugin; its result is null where the command has none.
    pub async fn run(&self, command: &'static str, config: &Value, call: &Call) -> Result<Value, CniError> {
        let plugin = config["type"].as_str().unwrap_or_default();
        let path = self.find(plugin)?;
        let at = |source| CniError::Run { plugin: plugin.to_owned(), source };
        let joined = std::env::join_paths(&self.directories).unwrap_or_default();
        let mut process = Command::new(path);
        process
            .env("CNI_COMMAND", command)
            .env("CNI_PATH", joined)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for (name, value) in [
            ("CNI_CONTAINERID", call.container_id.as_str()),
            ("CNI_NETNS", &call.netns.to_string_lossy()),
            ("CNI_IFNAME", &call.interface),
            ("CNI_ARGS", &call.arguments),
        ] {
            if !value.is_empty() {
                process.env(name, value);
            }
        }
        let exchange = async {
            let mut child = process.spawn()?;
            let mut input = child.stdin.take();
            let json = config.to_string();
            let write = async move {
                if let Some(input) = &mut input {
                    // A plugin that does not read reports the reason by its exit.
                    let _ = input.write_all(json.as_bytes()).await;
                }
            };
            let ((), output) = tokio::join!(write, child.wait_with_output());
            output
        };
        let output = match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(output) => output.map_err(at)?,
            Err(_) => {
                let seconds = TIMEOUT.as_secs();
                return Err(CniError::Timeout { plugin: plugin.to_owned(), command, seconds });
            }
        };
        answer(plugin, command, &output)
    }
}

pub(crate) fn answer(plugin: &str, command: &'static str, output: &Output) -> Result<Value, CniError> {
    let parsed = serde_json::from_slice::<Value>(&output.stdout);
    if output.status.success() {
        return match parsed {
            Ok(value) => Ok(value),
            Err(_) if output.stdout.trim_ascii().is_empty() => Ok(Value::Null),
            Err(error) => Err(CniError::Answer { plugin: plugin.to_owned(), reason: error.to_string() }),
        };
    }
    let error = parsed.unwrap_or_default();
    let field_of = |field: &str| error[field].as_str().unwrap_or_default().trim().to_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let message = match (field_of("msg"), field_of("details")) {
        (message, _) if message.is_empty() => format!("{} {}", output.status, stderr.trim()),
        (message, details) if details.is_empty() => message,
        (message, details) => format!("{message}: {details}"),
    };
    Err(CniError::Failed { plugin: plugin.to_owned(), command, message, code: error["code"].as_u64() })
}
