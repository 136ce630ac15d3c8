//! Tables: the routing configuration with everything looked up and parsed that a request would otherwise look up or parse.
//!
//! Invariant: a table never changes. A request keeps the table that it began with; backends and their endpoints are shared
//! by all tables, so endpoints change under a request that has not chosen one yet.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use corten_routing::{
    BackendKey, BackendRef, ClientValidation, Filter, Hosts, HttpHost, HttpRule, Listener, ListenerOptions,
    ListenerProtocol, MadeHosts, ObjectName, Retry, ServerCertificate, SessionPersistence, Timeouts, TlsHost, TlsUse,
};
use rustls::ServerConfig;

use crate::backend::Backend;
use crate::filters::Filters;
use crate::metrics::{Metrics, RouteMetrics};
use crate::policy::rate::Limiters;
use crate::policy::unknown_keys::UnknownKeys;
use crate::tls::HostConfig;
use crate::{random, tls};

/// A listener's configuration.
#[derive(Debug)]
pub(crate) struct Table {
    /// The port that clients connect to.
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) options: ListenerOptions,
    /// The TLS settings of ACME's challenges by server name.
    pub(crate) challenges: HashMap<String, Arc<ServerConfig>>,
}

#[derive(Debug)]
pub(crate) enum Protocol {
    Http(HttpHosts),
    Tls(TlsHosts),
    Tcp(Targets),
    Udp(Targets),
}

/// The tables of hosts. A table of a host is made once, and stays while the host does.
pub(crate) type HttpHosts = MadeHosts<Arc<HttpHost>, Arc<HttpTable>>;

/// The tables of server names.
pub(crate) type TlsHosts = MadeHosts<Arc<TlsHost>, Arc<TlsTable>>;

#[derive(Debug)]
pub(crate) struct HttpTable {
    pub(crate) host: Arc<HttpHost>,
    /// One for each rule of the host itself, with its number.
    rules: Box<[Arc<Rule>]>,
    /// The table of the wider host, which all narrower ones share.
    fallback: Option<Arc<HttpTable>>,
}

impl HttpTable {
    /// Returns the consequences of a rule by its number.
    pub(crate) fn rule(&self, number: usize) -> Option<&Arc<Rule>> {
        match number.checked_sub(self.rules.len()) {
            None => self.rules.get(number),
            Some(rest) => self.fallback.as_ref()?.rule(rest),
        }
    }
}

/// The consequences of a rule; rules that are matches of one rule of a route share them.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) route: ObjectName,
    pub(crate) filters: Arc<Filters>,
    pub(crate) targets: Targets,
    pub(crate) timeouts: Timeouts,
    pub(crate) retry: Option<Arc<Retry>>,
    pub(crate) session: Option<Arc<SessionPersistence>>,
    pub(crate) grpc: bool,
    pub(crate) metrics: RouteMetrics,
}

/// Backends by weight.
#[derive(Debug)]
pub(crate) struct Targets {
    targets: Vec<Target>,
    total: u64,
}

#[derive(Debug)]
pub(crate) struct Target {
    weight: u64,
    /// None if the reference is invalid.
    pub(crate) backend: Option<Arc<Backend>>,
    pub(crate) filters: Arc<Filters>,
}

/// A server name of a TLS listener.
#[derive(Debug)]
pub(crate) enum TlsTable {
    Http {
        config: Arc<HostConfig>,
        hosts: HttpHosts,
    },
    Tcp {
        config: Arc<HostConfig>,
        targets: Targets,
    },
    Passthrough(Targets),
    /// No certificate can be read: the handshake is refused.
    Refused,
}

impl Targets {
    /// Chooses a target by weight; none if there is none or all weigh nothing.
    pub(crate) fn choose(&self) -> Option<&Target> {
        if let [only] = self.targets.as_slice() {
            return (only.weight > 0).then_some(only);
        }
        if self.total == 0 {
            return None;
        }
        let mut left = random::number() % self.total;
        self.targets.iter().find(|target| match left.checked_sub(target.weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        })
    }

    pub(crate) fn all(&self) -> &[Target] {
        &self.targets
    }
}

/// The filters of rules without any.
static NO_FILTERS: LazyLock<Arc<Filters>> = LazyLock::new(Arc::default);

/// Makes tables.
pub(crate) struct Compiler<'a> {
    pub(crate) backend: &'a (dyn Fn(&BackendKey) -> Arc<Backend> + Sync),
    pub(crate) metrics: &'a Metrics,
    pub(crate) limiters: &'a Limiters,
    pub(crate) unknown_keys: &'a Arc<UnknownKeys>,
    pub(crate) tls: &'a mut TlsConfigs,
    pub(crate) wider: &'a mut WiderTables,
    /// The last table of the listener.
    pub(crate) last: Option<Arc<Table>>,
}

/// The tables of hosts that narrower ones fall back to, by the place of their rules. Each keeps its rules, so that the
/// place is taken.
#[derive(Debug, Default)]
pub(crate) struct WiderTables(HashMap<usize, Weak<HttpTable>>);

impl WiderTables {
    /// Forgets tables that are gone.
    pub(crate) fn forget_unused(&mut self) {
        self.0.retain(|_, table| table.strong_count() > 0);
    }
}

/// TLS settings by their description. They outlive a configuration, so that clients resume their sessions.
#[derive(Debug, Default)]
pub(crate) struct TlsConfigs(HashMap<TlsDescription, Arc<HostConfig>>);

/// The digest of certificates, keys and trusted certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TlsDescription([u8; 32]);

impl TlsDescription {
    fn new(
        certificates: &[Arc<ServerCertificate>],
        validation: Option<&Arc<ClientValidation>>,
        is_http: bool,
    ) -> TlsDescription {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        let mut add = |bytes: &[u8]| {
            context.update(&(bytes.len() as u64).to_le_bytes());
            context.update(bytes);
        };
        for certificate in certificates {
            add(&certificate.chain_pem);
            add(&certificate.key_pem);
        }
        if let Some(validation) = validation {
            add(&validation.trusted_pem);
            add(&[1, u8::from(validation.optional)]);
        }
        add(&[u8::from(is_http)]);
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        TlsDescription(digest)
    }
}

impl TlsConfigs {
    /// Returns the settings of certificates; none if they are invalid.
    fn get(
        &mut self,
        certificates: &[Arc<ServerCertificate>],
        validation: Option<&Arc<ClientValidation>>,
        is_http: bool,
    ) -> Option<Arc<HostConfig>> {
        let description = TlsDescription::new(certificates, validation, is_http);
        if let Some(known) = self.0.get(&description) {
            return Some(Arc::clone(known));
        }
        let made = HostConfig::new(certificates, validation.map(Arc::as_ref), is_http);
        let made = made.inspect_err(|error| tracing::warn!(%error, "a TLS host has no usable certificate"));
        let config = Arc::new(made.ok()?);
        self.0.insert(description, Arc::clone(&config));
        Some(config)
    }

    /// Forgets settings that no table has.
    pub(crate) fn forget_unused(&mut self) {
        self.0.retain(|_, config| Arc::strong_count(config) > 1);
    }
}

/// The identity of a rule's consequences: rules that share their filters and backends are one rule of a route.
#[derive(PartialEq, Eq, Hash)]
struct RuleKey {
    filters: *const Filter,
    backends: *const BackendRef,
    route: ObjectName,
}

impl Compiler<'_> {
    pub(crate) fn table(&mut self, port: u16, listener: &Listener) -> Table {
        let protocol = match &listener.protocol {
            ListenerProtocol::Http(hosts) => Protocol::Http(self.http_hosts(hosts)),
            ListenerProtocol::Tls(hosts) => Protocol::Tls(self.tls_hosts(hosts)),
            ListenerProtocol::Tcp(backends) => Protocol::Tcp(self.targets(backends)),
            ListenerProtocol::Udp(backends) => Protocol::Udp(self.targets(backends)),
        };
        let challenge = |(name, certificate): (&String, &Arc<ServerCertificate>)| {
            let made = tls::challenge_config(certificate);
            let config = made.inspect_err(|error| tracing::warn!(%error, name, "a challenge cannot be answered"));
            Some((name.clone(), config.ok()?))
        };
        let challenges = listener.options.challenges.iter().filter_map(challenge).collect();
        Table { port, protocol, options: listener.options.clone(), challenges }
    }

    fn http_hosts(&mut self, hosts: &Hosts<Arc<HttpHost>>) -> HttpHosts {
        let last = match self.last.as_deref() {
            Some(Table { protocol: Protocol::Http(last), .. }) => last.clone(),
            _ => HttpHosts::default(),
        };
        self.follow(last, hosts)
    }

    fn tls_hosts(&mut self, hosts: &Hosts<Arc<TlsHost>>) -> TlsHosts {
        let mut tables = match self.last.as_deref() {
            Some(Table { protocol: Protocol::Tls(last), .. }) => last.clone(),
            _ => TlsHosts::default(),
        };
        tables.follow(hosts, |host, last| Arc::new(self.tls_host(host, last.map(Arc::as_ref))));
        tables
    }

    /// Brings tables of hosts up to date.
    fn follow(&mut self, mut tables: HttpHosts, hosts: &Hosts<Arc<HttpHost>>) -> HttpHosts {
        tables.follow(hosts, |host, _| Arc::new(self.host(host)));
        tables
    }

    /// Makes the table of a host. That of the wider host is made once.
    fn host(&mut self, host: &Arc<HttpHost>) -> HttpTable {
        let fallback = host.fallback().map(|wider| {
            let place = Arc::as_ptr(wider).addr();
            self.wider.0.get(&place).and_then(Weak::upgrade).unwrap_or_else(|| {
                let table = Arc::new(self.host(wider));
                self.wider.0.insert(place, Arc::downgrade(&table));
                table
            })
        });
        HttpTable { rules: self.rules(host), host: Arc::clone(host), fallback }
    }

    fn rules(&self, host: &HttpHost) -> Box<[Arc<Rule>]> {
        let mut made: HashMap<RuleKey, Arc<Rule>> = HashMap::new();
        let rules = host.own_rules().iter().map(|rule| {
            let key =
                RuleKey { filters: rule.filters.as_ptr(), backends: rule.backends.as_ptr(), route: rule.route.clone() };
            // Rules without filters and backends may share the pointers of empty slices.
            if rule.filters.is_empty() && rule.backends.is_empty() {
                return Arc::new(self.rule(rule));
            }
            let known = made.entry(key).or_insert_with(|| Arc::new(self.rule(rule)));
            let is_same = known.timeouts == rule.timeouts && known.retry == rule.retry && known.session == rule.session;
            if is_same { Arc::clone(known) } else { Arc::new(self.rule(rule)) }
        });
        rules.collect()
    }

    fn rule(&self, rule: &HttpRule) -> Rule {
        Rule {
            route: rule.route.clone(),
            filters: self.filters(&rule.filters),
            targets: self.targets(&rule.backends),
            timeouts: rule.timeouts,
            retry: rule.retry.clone(),
            session: rule.session.clone(),
            grpc: rule.grpc,
            metrics: self.metrics.route(&rule.route),
        }
    }

    /// Returns the filters of a rule or reference. Those without any share one value.
    fn filters(&self, filters: &[Filter]) -> Arc<Filters> {
        match filters {
            [] => Arc::clone(&NO_FILTERS),
            filters => Arc::new(Filters::new(filters, self.backend, self.limiters, self.unknown_keys)),
        }
    }

    fn targets(&self, references: &[BackendRef]) -> Targets {
        let targets: Vec<Target> = references
            .iter()
            .map(|reference| Target {
                weight: u64::from(reference.weight),
                backend: reference.key.as_ref().map(|key| (self.backend)(key)),
                filters: self.filters(&reference.filters),
            })
            .collect();
        Targets { total: targets.iter().map(|target| target.weight).sum(), targets }
    }

    fn tls_host(&mut self, host: &TlsHost, last: Option<&TlsTable>) -> TlsTable {
        match host {
            TlsHost::Passthrough(backends) => TlsTable::Passthrough(self.targets(backends)),
            TlsHost::Terminate { certificates, client_validation, then } => {
                let is_http = matches!(then, TlsUse::Http(_));
                let Some(config) = self.tls.get(certificates, client_validation.as_ref(), is_http) else {
                    return TlsTable::Refused;
                };
                match then {
                    TlsUse::Http(hosts) => {
                        let last = match last {
                            Some(TlsTable::Http { hosts, .. }) => hosts.clone(),
                            _ => HttpHosts::default(),
                        };
                        TlsTable::Http { config, hosts: self.follow(last, hosts) }
                    }
                    TlsUse::Tcp(backends) => TlsTable::Tcp { config, targets: self.targets(backends) },
                }
            }
        }
    }
}
