//! The console as the API server shows it. Its questions are answered with the rights of the user who asks.

use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use corten_apiserver::{PageRequest, Server, Site, User};
use corten_console::{OpenId, PREFIX, Pages, Question};
use corten_meta::Value;
use futures::future::BoxFuture;
use http::{Method, Response, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::in_process;
use crate::access_options::AccessOptions;
use crate::answers;

/// The most questions that are answered at once: each reads many objects.
const MAX_QUESTIONS: usize = 4;
/// The time that an answer may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The user of requests without a credential.
const ANONYMOUS: &str = "system:anonymous";

/// The pages of the console below the API server's address.
#[derive(Debug)]
pub struct Console {
    pages: Pages,
    /// The server that questions are answered by, once it runs.
    server: OnceLock<Weak<Server>>,
    questions: Arc<Semaphore>,
}

impl Console {
    pub fn new(options: &AccessOptions) -> Console {
        let issuer = options.console_oidc_issuer_url.clone();
        let client_id = options.console_oidc_client_id.clone();
        let named = issuer.zip(client_id).map(|(issuer, client_id)| OpenId { issuer, client_id });
        let open_id = named.or_else(|| trusted_issuer(options.authentication_config.as_deref()?));
        Console {
            pages: Pages { open_id },
            server: OnceLock::new(),
            questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        }
    }

    /// Answers questions by this server from now on.
    pub fn ask(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// Answers a question with the rights of a user.
    async fn answer_question(&self, user: &User, question: Question) -> Response<Bytes> {
        let refusal = corten_console::refusal;
        if user.name == ANONYMOUS {
            return refusal(StatusCode::UNAUTHORIZED, "sign in to ask why");
        }
        let Some(server) = self.server.get().and_then(Weak::upgrade) else {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "the server is starting");
        };
        let Ok(permit) = Arc::clone(&self.questions).try_acquire_owned() else {
            return refusal(StatusCode::TOO_MANY_REQUESTS, "too many questions at once, please try again later");
        };
        let client = in_process::client(&server, user.clone());
        let abandoned = CancellationToken::new();
        let _abandon = abandoned.clone().drop_guard();
        let runtime = Handle::current();
        // On a thread of its own: what is reckoned between two requests must not hold up other requests.
        let work = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            runtime.block_on(abandoned.run_until_cancelled(answers::answer(client, question)))
        });
        match tokio::time::timeout(DEADLINE, work).await {
            Ok(Ok(Some(answer))) => corten_console::response(answer.map_err(|error| format!("{error:#}"))),
            Ok(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "the answer was not finished"),
            Err(_) => refusal(StatusCode::GATEWAY_TIMEOUT, "the answer took too long"),
        }
    }
}

/// Returns the first issuer that the API server trusts itself; its first audience is the client id. A file that cannot be
/// read is reported by the authenticator.
fn trusted_issuer(configuration: &Path) -> Option<OpenId> {
    let text = std::fs::read_to_string(configuration).ok()?;
    issuer_of(&corten_meta::decode_yaml(text.as_bytes()).ok()?)
}

fn issuer_of(configuration: &Value) -> Option<OpenId> {
    let issuers = configuration.get("jwt")?.as_array()?.iter().map(|one| &one["issuer"]);
    let mut usable = issuers.filter_map(|issuer| {
        let url = issuer["url"].as_str().filter(|url| url.starts_with("https://"))?;
        let client_id = issuer.pointer("/audiences/0")?.as_str()?;
        Some(OpenId { issuer: url.to_owned(), client_id: client_id.to_owned() })
    });
    usable.next()
}

impl Site for Console {
    fn prefix(&self) -> &'static str {
        PREFIX
    }

    fn answer<'a>(&'a self, request: PageRequest<'a>) -> BoxFuture<'a, Response<Bytes>> {
        Box::pin(async move {
            match Question::of(request.path, request.query) {
                Some(question) if request.method == Method::GET => self.answer_question(request.user, question).await,
                _ => self.pages.answer(request.method, request.path, request.headers),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_usable_issuer_of_the_server_is_that_of_the_console() {
        let issuer = |url: &str, audiences: Value| json!({"issuer": {"url": url, "audiences": audiences}});
        let configuration = json!({"jwt": [
            issuer("http://plain.example.com", json!(["a"])),
            issuer("https://none.example.com", json!([])),
            issuer("https://login.example.com", json!(["console", "other"])),
        ]});
        let found = issuer_of(&configuration).unwrap();
        assert_eq!((found.issuer.as_str(), found.client_id.as_str()), ("https://login.example.com", "console"));
        assert!(issuer_of(&json!({"jwt": []})).is_none());
        assert!(issuer_of(&json!({})).is_none());
    }
}
