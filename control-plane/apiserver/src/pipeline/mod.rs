//! The request path, as one function of named steps. Every response of the server comes from here.

mod impersonation;
mod spans;

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Instant;

use corten_access::{User, Verb, forbidden};
use corten_admission::Operation;
use corten_meta::{Status, Value};
use corten_spans::Recording;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, header};

use crate::aggregation;
use crate::authentication;
use crate::authorization::{Decision, Verdict};
use crate::body::{Body, Reply, RequestBody};
use crate::context::{AuditRecord, Context};
use crate::deadline;
use crate::dispatch;
use crate::flow_control::Seat;
use crate::metrics::{self, CERTIFICATE_SECONDS, TERMINATIONS};
use crate::negotiation::Accept;
use crate::paths;
use crate::peer::{Identity, Peer};
use crate::registry::Resource;
use crate::registry::request_conversions::RequestConversions;
use crate::request::RequestInfo;
use crate::response;
use crate::server::Server;
use crate::target::Target;
use crate::websocket;
use impersonation::impersonate;

impl Server {
    /// Answers one request. It never fails and never panics: both become responses.
    pub async fn handle(&self, request: Request<RequestBody>, peer: &Peer) -> Reply {
        let started = Instant::now();
        let (parts, body) = request.into_parts();
        let mut context = self.context(parts, peer);
        let series = self.core.metrics.requests.series(&metrics::Request {
            info: &context.info,
            kind: context.resource.as_ref().map(|resource| &*resource.kind),
            method: &context.method,
            headers: &context.headers,
        });
        let accept = context.accept;
        let answered = AssertUnwindSafe(self.answer_in_time(&mut context, body, peer)).catch_unwind().await;
        let panicked = answered.is_err();
        let mut reply = match answered {
            Ok(Ok(reply)) => reply,
            Ok(Err(status)) => {
                if status.code == 504 {
                    self.core.metrics.add(&TERMINATIONS, &[&["504"], series.values().as_slice()].concat());
                }
                response::status(accept, &status)
            }
            Err(_) => {
                tracing::error!("a request panicked");
                response::status(accept, &Status::internal("this request caused a panic".to_owned()))
            }
        };
        write_warnings(&context, &mut reply);
        finish_headers(&context, &mut reply);
        self.audit.responded(&context, &mut reply, panicked).await;
        series.observe(reply.status().as_u16(), started.elapsed(), reply.body().size());
        if let Body::Watch(watch) = reply.body_mut() {
            watch.until_end.push(Box::new(series.begin()));
        }
        websocket::watch(&self.core.tasks, &context, reply)
    }

    /// Makes the context of a request that is not authenticated yet.
    fn context(&self, mut parts: http::request::Parts, peer: &Peer) -> Context {
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or_default());
        let resource = match info.is_resource {
            true => self.core.registry.resource(&info.group, &info.version, &info.resource),
            false => None,
        };
        let offer = info.offer(resource.as_ref().map(|resource| &*resource.kind));
        let is_routed = self.is_routed(&info, resource.as_deref());
        let pretty = info.query.get("pretty");
        let (accept, not_acceptable) = Accept::negotiate(&parts.headers, pretty, offer, is_routed);
        Context {
            resource,
            user: User::anonymous(),
            accept,
            not_acceptable,
            now: jiff::Timestamp::now(),
            deadline: deadline::of(&info),
            warnings: Mutex::default(),
            audit: AuditRecord::new(&parts.headers, peer),
            annotations: Mutex::default(),
            classified: None,
            conversions: RequestConversions::default(),
            upgrade: Mutex::new(parts.extensions.remove::<hyper::upgrade::OnUpgrade>()),
            raw_path: parts.uri.path().to_owned(),
            raw_query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers,
            method: parts.method,
            info,
        }
    }

    /// Returns whether the path is fixed at the start: groups and custom resources are added and removed later.
    fn is_routed(&self, info: &RequestInfo, resource: Option<&Resource>) -> bool {
        if let Some(resource) = resource {
            return resource.kind.serving().is_registered;
        }
        let mut parts = info.path.trim_matches('/').split('/');
        match (parts.next(), parts.next(), parts.next()) {
            // The group of APIServices, by which groups are registered, is itself routed.
            (Some("apis"), Some("apiregistration.k8s.io"), None) => true,
            (Some("apis"), _, None) => false,
            (Some("apis"), Some(group), Some(_)) => self.core.registry.resources().has_registered_group(group),
            _ => true,
        }
    }

    /// Runs admission on new objects as a create would, and nothing else: for measuring the cost of admission.
    pub(crate) async fn admit(&self, request: Request<()>, peer: &Peer, objects: Vec<Value>) -> Result<(), Status> {
        let mut context = self.context(request.into_parts().0, peer);
        context.user = self.authentication.authenticate(&context, peer).await?;
        let resource = context.resource.as_ref().ok_or_else(Status::path_not_found)?;
        let namespace = context.info.namespace.as_str();
        let target = Target { core: &self.core, context: &context, resource, namespace, name: "" };
        for object in objects {
            let target = target.for_admission();
            let mut attributes = corten_admission::Attributes::new(target, Operation::Create, object, None);
            self.admission.admit(&mut attributes).await?;
            self.admission.validate(&attributes).await?;
            self.admission.charge(&mut attributes).await?;
        }
        Ok(())
    }

    /// Answers within the client's timeout.
    async fn answer_in_time(&self, context: &mut Context, body: RequestBody, peer: &Peer) -> Result<Reply, Status> {
        let Some(time) = deadline::requested_timeout(&context.info)? else {
            return self.answer(context, body, peer).await;
        };
        let began = Instant::now();
        match tokio::time::timeout(time, self.answer(context, body, peer)).await {
            Ok(answer) if began.elapsed() < time => answer,
            _ => Ok(deadline::exceeded()),
        }
    }

    /// Runs the steps of a request, in order.
    async fn answer(&self, context: &mut Context, body: RequestBody, peer: &Peer) -> Result<Reply, Status> {
        if context.info.is_cut_short {
            return Ok(response::cut_short(&context.raw_path, &context.raw_query));
        }
        let began = Instant::now();
        let authenticated = self.authentication.authenticate(context, peer).await;
        self.core.metrics.authenticated.count(usize::from(authenticated.is_err()), began.elapsed());
        context.user = authenticated?;
        authentication::websocket_token::remove(&mut context.headers);
        self.note_certificate(context, peer);
        if context.headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            let acting = match impersonate(&self.core.authorization, context.user.clone(), &context.headers).await {
                Ok(acting) => acting,
                Err(status) => return Ok(refusal(context, &status)),
            };
            if acting != context.user {
                context.audit.impersonator = Some(std::mem::replace(&mut context.user, acting));
            }
        }
        self.audit.begin(context).await;
        match spans::begin(self.core.config.tracer.as_ref(), context) {
            None => self.act(context, body).await,
            // Few requests are sampled: the others do not carry the room for this.
            Some(span) => {
                let answered = self.act_within(&span, context, body).await;
                spans::end(span, context, &answered);
                answered
            }
        }
    }

    /// Runs these steps within a span.
    fn act_within<'a>(
        &'a self,
        span: &'a Recording,
        context: &'a mut Context,
        body: RequestBody,
    ) -> BoxFuture<'a, Result<Reply, Status>> {
        Box::pin(span.scope(self.act(context, body)))
    }

    /// Runs the steps of a request whose user is known.
    async fn act(&self, context: &mut Context, body: RequestBody) -> Result<Reply, Status> {
        let seat = self.seat(context).await?;
        if let Err(status) = self.authorize(context).await {
            return Ok(refusal(context, &status));
        }
        let _in_flight = self.limits.enter(context)?;
        if let Some(remote) = self.aggregation.route(&context.info.path) {
            // The other server has seats of its own, and may call this one before it responds.
            drop(seat);
            return aggregation::forward(&self.core, context, &remote, body).await;
        }
        if self.aggregation.measures(&context.info.path) {
            // The source may take a while, and this server does no work for it.
            drop(seat);
            return self.aggregation.measure(&self.core, context).await;
        }
        if context.info.is_resource {
            // From here: decode → admit → validate → store → encode, in the handler of the verb.
            dispatch::dispatch(self, context, body).await
        } else if let Some(site) = paths::site(self, context) {
            // A page may ask this server in its user's name: those requests have seats of their own.
            drop(seat);
            Ok(paths::page(site, context).await)
        } else {
            paths::serve(self, context).await
        }
    }

    /// Records the remaining lifetime of the client certificate of a request.
    fn note_certificate(&self, context: &Context, peer: &Peer) {
        if let (Identity::Certificate(_), Some(expires)) = (&peer.identity, peer.expires) {
            let left = expires.duration_since(context.now).as_secs().max(0);
            self.core.metrics.certificates.observe(left as f64, CERTIFICATE_SECONDS);
        }
    }

    /// Waits for a seat among the requests of the same priority level. Long-running streams would hold theirs for ever;
    /// a watch gives it back as soon as it has begun.
    async fn seat(&self, context: &mut Context) -> Result<Option<Seat>, Status> {
        if context.info.is_long_running() && context.info.verb != Verb::Watch {
            return Ok(None);
        }
        let (classified, admission) = self.flow_control.classify(context);
        context.classified = Some(classified);
        admission.enter(context).await
    }

    async fn authorize(&self, context: &mut Context) -> Result<(), Status> {
        let attributes = context.info.attributes(&context.user);
        let began = Instant::now();
        let Verdict { decision, reason } = self.core.authorization.decide(&attributes).await;
        self.core.metrics.authorized.count(decision.metric_index(), began.elapsed());
        if decision == Decision::Allow {
            context.audit.decision = Some(("allow", reason));
            return Ok(());
        }
        let refused = forbidden(&attributes, &reason);
        context.audit.decision = Some(("forbid", reason));
        Err(refused)
    }
}

/// Returns the response to a user who is not authorized.
fn refusal(context: &Context, status: &Status) -> Reply {
    let mut reply = response::status(context.accept, status);
    reply.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

fn finish_headers(context: &Context, reply: &mut Reply) {
    let headers = reply.headers_mut();
    if let Some(classified) = &context.classified {
        headers.insert("x-kubernetes-pf-flowschema-uid", classified.flow_schema.clone());
        headers.insert("x-kubernetes-pf-prioritylevel-uid", classified.priority_level.clone());
    }
    if !context.info.is_cut_short {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    }
    if let Ok(id) = HeaderValue::from_str(&context.audit.id) {
        headers.insert("audit-id", id);
    }
    if matches!(reply.body(), Body::Full(bytes) if bytes.is_empty()) {
        reply.headers_mut().remove(header::CONTENT_TYPE);
    }
}

fn write_warnings(context: &Context, reply: &mut Reply) {
    let warnings = context.warnings.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for warning in warnings.messages() {
        let text = warning.replace(['\n', '\r'], " ").replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            reply.headers_mut().append(header::WARNING, value);
        }
    }
}
