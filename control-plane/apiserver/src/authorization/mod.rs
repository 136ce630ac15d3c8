//! Authorization: `system:masters` is always allowed, then the configured authorizers decide in their order; by
//! default, the Node authorizer and RBAC.
//!
//! The pipeline authorizes every request; handlers do not authorize again, except for the additional checks that the
//! API defines (impersonation, escalation, access reviews).

pub mod bootstrap_policy;
pub(crate) mod configuration;
pub mod node;
pub mod rbac;
pub(crate) mod webhook;

use std::sync::Arc;

use arc_swap::ArcSwap;
use corten_access::{Attributes, forbidden};
use corten_meta::Status;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config};
use crate::error::Error;
use crate::metrics::{AUTHORIZATION_CONFIGURATION, Metrics};
use crate::registry::Registry;
use rbac::{Policy, Rbac};
use webhook::Webhook;

/// The decision of one authorizer, or of all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow,
    Deny,
    NoOpinion,
}

impl Decision {
    /// Returns the index of the decision in the metrics: `allowed`, `denied`, `no-opinion`.
    pub fn metric_index(self) -> usize {
        match self {
            Decision::Allow => 0,
            Decision::Deny => 1,
            Decision::NoOpinion => 2,
        }
    }
}

/// A decision and its reason, which is often empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    pub reason: String,
}

impl Verdict {
    pub fn new(decision: Decision, reason: impl Into<String>) -> Verdict {
        Verdict { decision, reason: reason.into() }
    }

    fn into_result(self) -> Result<String, String> {
        if self.decision == Decision::Allow { Ok(self.reason) } else { Err(self.reason) }
    }
}

/// The configured authorizers.
pub struct Authorization {
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    authorizers: ArcSwap<Authorizers>,
    rbac: Rbac,
    settings: Option<config::Authorization>,
}

impl Authorization {
    pub fn new(config: &Config, registry: Arc<Registry>, metrics: Arc<Metrics>) -> Result<Authorization, Error> {
        Ok(Authorization {
            authorizers: ArcSwap::from_pointee(Authorizers::new(config)?),
            rbac: Rbac::of_registry(&registry)?,
            settings: config.authorization.clone(),
            registry,
            metrics,
        })
    }

    /// Returns the current roles and bindings.
    pub fn rbac(&self) -> Arc<Policy> {
        self.rbac.policy()
    }

    /// Reports whether a webhook is among the authorizers.
    pub fn has_webhook(&self) -> bool {
        self.authorizers.load().has_webhook()
    }

    /// Returns `Ok` with the reason why the request is allowed, or `Err` with the reason why it is not (often empty).
    pub async fn authorize(&self, attributes: &Attributes<'_>) -> Result<String, String> {
        self.decide(attributes).await.into_result()
    }

    /// Refuses with a 403 a request that is not allowed.
    pub async fn check(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        self.authorize(attributes).await.map(drop).map_err(|reason| forbidden(attributes, &reason))
    }

    /// Decides as `authorize` does, without waiting; `None` if a webhook would have to be called.
    pub fn authorize_now(&self, attributes: &Attributes<'_>) -> Option<Result<String, String>> {
        match self.next(&self.authorizers.load(), attributes, 0, &mut Vec::new()) {
            Step::Decided(verdict) => Some(verdict.into_result()),
            Step::Ask(..) => None,
        }
    }

    /// Asks the authorizers in their order: the first that has an opinion decides; without an opinion the request is
    /// denied.
    pub async fn decide(&self, attributes: &Attributes<'_>) -> Verdict {
        let authorizers = self.authorizers.load_full();
        let mut at = 0;
        let mut reasons = Vec::new();
        loop {
            match self.next(&authorizers, attributes, at, &mut reasons) {
                Step::Decided(verdict) => return verdict,
                Step::Ask(index, webhook) => {
                    let verdict = webhook.review(&self.metrics, attributes).await;
                    if verdict.decision != Decision::NoOpinion {
                        return verdict;
                    }
                    reasons.push(verdict.reason);
                    at = index + 1;
                }
            }
        }
    }

    /// Asks the authorizers from an index on, until one decides or has to be waited for.
    fn next<'w>(
        &self,
        authorizers: &'w Authorizers,
        a: &Attributes<'_>,
        from: usize,
        reasons: &mut Vec<String>,
    ) -> Step<'w> {
        // With any configuration, an administrator can repair the cluster.
        if a.user.is_in("system:masters") {
            return Step::Decided(Verdict::new(Decision::Allow, ""));
        }
        for (at, authorizer) in authorizers.0.iter().enumerate().skip(from) {
            let verdict = match authorizer {
                Authorizer::AlwaysAllow => Verdict::new(Decision::Allow, ""),
                Authorizer::AlwaysDeny => Verdict::new(Decision::NoOpinion, "Everything is forbidden."),
                Authorizer::Node => node::authorize(&self.registry, a),
                Authorizer::Rbac => match self.rbac.policy().authorize(a) {
                    Ok(reason) => Verdict::new(Decision::Allow, reason),
                    Err(reason) => Verdict::new(Decision::NoOpinion, reason),
                },
                Authorizer::Webhook(webhook) => return Step::Ask(at, webhook),
            };
            if verdict.decision != Decision::NoOpinion {
                self.metrics.decisions.count(authorizer.metric_index(), verdict.decision.metric_index());
                return Step::Decided(verdict);
            }
            reasons.push(verdict.reason);
        }
        let reasons: Vec<&str> = reasons.iter().map(String::as_str).filter(|reason| !reason.is_empty()).collect();
        Step::Decided(Verdict::new(Decision::NoOpinion, reasons.join("\n")))
    }

    /// Applies changes of the configuration until shutdown; an invalid one changes nothing.
    pub async fn run(&self, shutdown: &CancellationToken) {
        let Some(mut settings) = self.settings.clone() else { return };
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = settings.configuration.changed() => if changed.is_err() { return },
            }
            let file = settings.configuration.borrow_and_update().clone();
            let read = Authorizers::read(&file, &settings);
            self.metrics.reloaded(&AUTHORIZATION_CONFIGURATION, &file, read.is_ok());
            match read {
                Ok(authorizers) => {
                    self.authorizers.store(Arc::new(authorizers));
                    tracing::info!("the authorization configuration was read again");
                }
                Err(e) => tracing::error!(error = e, "the new authorization configuration is not used"),
            }
        }
    }
}

/// The authorizers of a configuration, in their order.
pub struct Authorizers(Vec<Authorizer>);

pub enum Authorizer {
    AlwaysAllow,
    AlwaysDeny,
    Node,
    Rbac,
    Webhook(Box<Webhook>),
}

impl Authorizer {
    fn metric_index(&self) -> usize {
        match self {
            Authorizer::AlwaysAllow => 0,
            Authorizer::AlwaysDeny => 1,
            Authorizer::Node => 2,
            Authorizer::Rbac => 3,
            Authorizer::Webhook(_) => usize::MAX,
        }
    }
}

/// The outcome of the authorizers that need no waiting.
enum Step<'a> {
    Decided(Verdict),
    /// The webhook at this index has to be called.
    Ask(usize, &'a Webhook),
}

impl Authorizers {
    /// Makes the configured authorizers; the Node authorizer and RBAC without a configuration.
    pub fn new(config: &Config) -> Result<Authorizers, Error> {
        let Some(authorization) = &config.authorization else {
            return Ok(Authorizers(vec![Authorizer::Node, Authorizer::Rbac]));
        };
        Authorizers::read(&authorization.configuration.borrow(), authorization).map_err(Error::Config)
    }

    fn read(file: &str, settings: &config::Authorization) -> Result<Authorizers, String> {
        let authorizers = configuration::parse(file, settings);
        authorizers.map(Authorizers).map_err(|e| format!("AuthorizationConfiguration: {e}"))
    }

    pub fn has_webhook(&self) -> bool {
        self.0.iter().any(|authorizer| matches!(authorizer, Authorizer::Webhook(_)))
    }
}
