//! The questions of `corten why` that are not about one object: a request that is denied, a connection that is dropped,
//! a name that does not resolve.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use corten_meta::Value;
use corten_why::{
    Access, ClientReader, Connection, Finding, Lookup, Sources, Target, explain_access, explain_connection,
    explain_event, explain_lookup, find_resource,
};

use super::why::{client, print_findings};
use crate::answers::Plugins;
use crate::config;
use crate::flag_values::DEFAULT_DATA_DIR;
use crate::user_cli::Why;

/// The longest line of an audit log that is read.
const MAX_EVENT: u64 = 4 << 20;

/// A question that is not about one object.
#[derive(Debug, PartialEq, Eq)]
pub enum Question {
    CanI { verb: String, resource: String },
    Request { id: String },
    Connection(Connection),
    Lookup(Lookup),
}

impl Question {
    /// Reads the question of the flags; `None` if they name an object.
    pub fn read(flags: &Why) -> Result<Option<Question>> {
        let words: Vec<&str> = flags.words.iter().map(String::as_str).collect();
        let question = match (flags.object.split_once('/'), flags.object.as_str()) {
            (Some(("dns", name)), _) => Question::Lookup(Lookup {
                name: name.to_owned(),
                from: flags.from.clone(),
                namespace: flags.namespace.clone(),
                domain: flags.cluster_domain.clone(),
            }),
            (Some(("request", id)), _) if !id.is_empty() => Question::Request { id: id.to_owned() },
            (None, "connection") => Question::Connection(connection(flags)?),
            (None, "can-i") => {
                let [verb, resource] = words[..] else {
                    bail!("name a verb and a resource: corten why can-i get pods")
                };
                Question::CanI { verb: verb.to_owned(), resource: resource.to_owned() }
            }
            _ => return Ok(None),
        };
        if !words.is_empty() && !matches!(question, Question::CanI { .. }) {
            bail!("{:?} is too much", words[0]);
        }
        Ok(Some(question))
    }
}

fn connection(flags: &Why) -> Result<Connection> {
    let usage = "corten why connection --from POD --to TARGET --port PORT";
    let (Some(from), Some(to), Some(port)) = (&flags.from, &flags.to, &flags.port) else { bail!("say: {usage}") };
    let (number, protocol) = port.split_once('/').unwrap_or((port, "TCP"));
    let protocol = protocol.to_uppercase();
    if !["TCP", "UDP", "SCTP"].contains(&protocol.as_str()) {
        bail!("{protocol} is none of TCP, UDP and SCTP");
    }
    Ok(Connection {
        from: from.clone(),
        to: to.clone(),
        port: number.parse().with_context(|| format!("{number:?} is no port"))?,
        protocol,
        namespace: flags.namespace.clone(),
    })
}

/// Answers a question.
pub async fn ask(flags: &Why, question: Question) -> Result<()> {
    if let Question::Request { id } = &question {
        let default = || Path::new(DEFAULT_DATA_DIR).join("audit/audit.log");
        let log = flags.audit_log.clone().unwrap_or_else(default);
        let event = event(&log, id)?;
        return show(&explain_event(&event), "The server answered it.");
    }
    let client = client(flags)?;
    let objects = ClientReader(client.clone());
    let placement = Plugins { client: client.clone(), scheduler: config::scheduler(None)? };
    let sources = Sources { objects: &objects, placement: &placement };
    match question {
        Question::Connection(connection) => {
            let findings = explain_connection(sources, &connection).await?;
            show(&findings, "No NetworkPolicy drops it. If it fails, the program does not listen on that port.")
        }
        Question::Lookup(lookup) => show(&explain_lookup(sources, &lookup).await?, "Cluster DNS has an answer for it."),
        Question::CanI { verb, resource } => {
            let target = target(&client, flags, &resource).await?;
            let user = flags.user.clone().unwrap_or_default();
            let access = Access { verb, target, user, groups: flags.groups.clone() };
            show(&explain_access(sources, &access).await?, "")
        }
        Question::Request { .. } => Ok(()),
    }
}

fn show(findings: &[Finding], nothing: &str) -> Result<()> {
    if findings.is_empty() {
        println!("{nothing}");
    }
    print_findings(findings);
    Ok(())
}

/// Reads `RESOURCE[.GROUP][/NAME]`, `RESOURCE/SUBRESOURCE` with `:`, or a path.
async fn target(client: &corten_client::Client, flags: &Why, word: &str) -> Result<Target> {
    if word.starts_with('/') {
        return Ok(Target::Path(word.to_owned()));
    }
    let (word, name) = word.split_once('/').unwrap_or((word, ""));
    let (word, subresource) = word.split_once(':').unwrap_or((word, ""));
    let found = find_resource(client, word).await.context("the server's resources cannot be read")?;
    let Some(resource) = found else { bail!("the server has no resource {word:?}") };
    Ok(Target::Resource {
        namespace: if resource.namespaced { flags.namespace.clone() } else { String::new() },
        group: resource.group,
        plural: resource.plural,
        subresource: subresource.to_owned(),
        name: name.to_owned(),
    })
}

/// Finds an event of an audit log by its id; the last of a request is that of its answer.
fn event(log: &Path, id: &str) -> Result<Value> {
    let file = std::fs::File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    let mut reader = BufReader::new(file);
    let mut found = None;
    loop {
        let mut line = Vec::new();
        let count = reader.by_ref().take(MAX_EVENT).read_until(b'\n', &mut line)?;
        if count == 0 {
            break;
        }
        let is_meant = |event: &Value| event["auditID"] == id;
        found = serde_json::from_slice(&line).ok().filter(is_meant).or(found);
    }
    found.with_context(|| format!("{} has no event {id}", log.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn flags(words: &str) -> Why {
        let words = ["corten", "why"].into_iter().chain(words.split(' '));
        match crate::cli::Cli::parse_from(words).command {
            crate::cli::Command::Why(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn questions_are_read() {
        assert_eq!(Question::read(&flags("pod/web")).unwrap(), None);
        assert_eq!(Question::read(&flags("web")).unwrap(), None);
        let expected = Question::CanI { verb: "get".to_owned(), resource: "pods/web".to_owned() };
        assert_eq!(Question::read(&flags("can-i get pods/web --as jane")).unwrap(), Some(expected));
        let Some(Question::Connection(connection)) =
            Question::read(&flags("connection --from a --to b/c --port 53/udp -n x")).unwrap()
        else {
            panic!("no connection");
        };
        assert_eq!((connection.port, connection.protocol.as_str()), (53, "UDP"));
        for words in [
            "can-i get",
            "connection --from a",
            "connection --from a --to b --port x",
            "connection --from a --to b --port 1/ip",
            "dns/a b",
        ] {
            assert!(Question::read(&flags(words)).is_err(), "{words}");
        }
    }

    #[test]
    fn an_event_is_found_by_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("audit.log");
        let lines = "{\"auditID\": \"a\", \"stage\": \"RequestReceived\"}\nnot json\n\
                     {\"auditID\": \"a\", \"stage\": \"ResponseComplete\"}\n{\"auditID\": \"b\"}";
        std::fs::write(&log, lines).unwrap();
        assert_eq!(event(&log, "a").unwrap()["stage"], "ResponseComplete");
        assert!(event(&log, "c").is_err());
        assert!(event(&folder.path().join("none"), "a").is_err());
    }
}
