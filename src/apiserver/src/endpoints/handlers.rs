//! Handling of requests: admission, routing, and one function per verb.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::audit::{Audit, CreatedName, Finished, Identity};
use crate::authentication::User;
use crate::authorization::{Requestor, Rules};
use crate::builtin::BuiltIn;
use crate::endpoints::gzip;
use crate::endpoints::in_flight::InFlight;
use crate::endpoints::negotiate::{self, Conversion, Encoding, OutputMedia};
use crate::endpoints::options::{DeleteOptions, ListOptions, WriteOptions, WriteVerb, field_manager};
use crate::endpoints::patch_request::{self, PatchRequest};
use crate::endpoints::reply::{self, Reply};
use crate::endpoints::representation::{IncludeObject, View, page_of};
use crate::endpoints::request::Request;
use crate::endpoints::routes::{self, ResourcePath, Route};
use crate::endpoints::watch::{self, OpenWatch, WatchRequest};
use crate::engine::list;
use crate::engine::selection::Selection;
use crate::engine::{
    Deleted, Edit, Engine, ResultObject, ScaleEdit, Target, Warnings, WriteResult, not_registered,
    request_body, scale_of,
};
use crate::metrics::ApiServerMetrics;
use crate::object;
use crate::registry::resource::{Origin, Resource, ScalePaths, Subresource, to_bytes};
use crate::status::{ApiError, deleted};
use rooflet_apimachinery::verb::Verb;
use rooflet_base::metrics;
use rooflet_http_server::Guesses;
use rooflet_pki::{AccountKey, Token, TokenIssuer, UserCertificates};
use rooflet_schema::gotext::quote;
use rooflet_schema::names;

/// Dependencies of the request handlers.
pub(crate) struct Api {
    pub engine: Engine,
    pub token: Token,
    /// Key of the tokens of service accounts. If `None`, the server issues and accepts none.
    pub account_key: Option<Arc<AccountKey>>,
    pub issuers: Vec<TokenIssuer>,
    /// Verifier of client certificates.
    pub users: Option<UserCertificates>,
    /// Wrong bootstrap tokens by client.
    pub guesses: Guesses,
    pub rules: Arc<Rules>,
    pub in_flight: InFlight,
    pub audit: Option<Audit>,
    pub metrics: ApiServerMetrics,
    pub metrics_registry: metrics::Registry,
    /// Address for clients: `host:port`.
    pub address: String,
    /// True once the initial namespaces and definitions exist.
    pub is_ready: AtomicBool,
    pub stop: CancellationToken,
}

/// Request for a resource, resolved.
pub(super) struct Call<'a> {
    pub(super) request: &'a Request,
    pub(super) by: Requestor,
    pub(super) path: &'a ResourcePath,
    pub(super) resource: Arc<Resource>,
    subresource: Option<Subresource>,
}

impl Api {
    /// Handles an admitted request. Always returns a response.
    pub(crate) async fn handle(&self, request: &Request, user: Arc<User>) -> Reply {
        let started = self.engine.clock.instant();
        let route = routes::parse(&request.path);
        let verb = verb(request, &route);
        let mut warnings = Warnings::default();
        let by = Requestor {
            user,
            verb,
            rules: Arc::clone(&self.rules),
        };
        let outcome = self.dispatch(request, &route, &by, &mut warnings).await;
        let mut reply = outcome.unwrap_or_else(|err| {
            let encoding = negotiate::error_encoding(request.accept());
            reply::error(&err, encoding, request.is_pretty())
        });
        if gzip::accepts_gzip(request.header(header::ACCEPT_ENCODING)) {
            reply = gzip::compressed(reply);
        }
        let (warnings, annotations) = warnings.into_parts();
        reply.extensions_mut().insert(annotations);
        reply::add_warnings(&mut reply, warnings);
        let took = self.engine.clock.instant() - started;
        self.metrics
            .observe(verb, self.metric_label(&route), reply.status().as_u16(), took);
        reply
    }

    /// Sets the `Audit-Id` of a response, and records the request.
    pub(crate) fn audit(
        &self,
        request: &Request,
        identity: &Identity,
        client: Option<IpAddr>,
        received: Timestamp,
        reply: &mut Reply,
    ) {
        let id = uuid::Uuid::new_v4().to_string();
        if let Some(audit) = &self.audit {
            let route = routes::parse(&request.path);
            let finished = Finished {
                request,
                verb: verb(request, &route),
                route: &route,
                identity,
                client,
                status: reply.status(),
                created: reply
                    .extensions()
                    .get::<CreatedName>()
                    .map(|CreatedName(name)| name.as_str()),
                annotations: reply.extensions().get(),
                id: &id,
                received,
                finished: self.engine.clock.now(),
            };
            audit.finished(&finished, self.engine.clock.instant());
        }
        if let Ok(id) = HeaderValue::from_str(&id) {
            reply.headers_mut().insert("audit-id", id);
        }
    }

    /// Returns the resource label of a metric. Only served names are used, to bound cardinality.
    pub(super) fn metric_label<'a>(&self, route: &'a Route) -> &'a str {
        let Route::Resource(path) = route else { return "" };
        let snapshot = self.engine.registry.snapshot();
        let is_served = snapshot
            .resource(&path.group, &path.version, &path.resource)
            .is_some();
        if is_served { &path.resource } else { "" }
    }

    async fn dispatch(
        &self,
        request: &Request,
        route: &Route,
        by: &Requestor,
        warnings: &mut Warnings,
    ) -> Result<Reply, ApiError> {
        if let Route::Resource(path) = route {
            loop {
                match self.resource(request, path, by, warnings).await {
                    // The definition changed during the request: repeat it with the new definition.
                    Err(err) if err.is_definition_change() => *warnings = Warnings::default(),
                    outcome => return outcome,
                }
            }
        }
        if !matches!(request.method, Method::GET | Method::HEAD) && !self.ignores_method(route) {
            let is_known = *route != Route::Unknown;
            return Err(if is_known {
                ApiError::no_such_method()
            } else {
                ApiError::no_route()
            });
        }
        if *route == Route::Snapshot && request.method == Method::GET {
            return self.snapshot().await;
        }
        self.document(request, route)
    }

    /// Returns true for discovery documents that kube-apiserver returns for every method.
    fn ignores_method(&self, route: &Route) -> bool {
        match route {
            Route::Groups | Route::Group(_) => true,
            Route::Resources { group, version } => {
                let snapshot = self.engine.registry.snapshot();
                let found = snapshot.group_version(group, version);
                found.is_some_and(|found| !found.has_built_in())
            }
            Route::Root
            | Route::Version
            | Route::Health { .. }
            | Route::Metrics
            | Route::Snapshot
            | Route::CoreVersions
            | Route::OpenApiV2
            | Route::OpenApiIndex
            | Route::OpenApiDocument(_)
            | Route::Resource(_)
            | Route::Unknown => false,
        }
    }

    async fn resource(
        &self,
        request: &Request,
        path: &ResourcePath,
        by: &Requestor,
        warnings: &mut Warnings,
    ) -> Result<Reply, ApiError> {
        let verb = by.verb;
        let snapshot = self.engine.registry.snapshot();
        let Some(resource) = snapshot.resource(&path.group, &path.version, &path.resource) else {
            return Err(snapshot.not_served(&path.group));
        };
        let is_custom = resource.custom().is_some();
        let spans_namespaces = matches!(verb, Verb::List | Verb::Watch);
        if path.namespace.is_some() != resource.namespaced && !(resource.namespaced && spans_namespaces) {
            return Err(match (is_custom, path.namespace.is_some(), path.name.is_some()) {
                (false, false, false) => ApiError::no_such_method(),
                (false, false, true) => ApiError::resource_not_served(),
                _ => ApiError::no_route(),
            });
        }
        if let Some(warning) = resource
            .custom()
            .and_then(|custom| custom.deprecation_warning.as_deref())
        {
            warnings.add(warning);
        }
        let subresource = match path.subresource.as_deref() {
            None => None,
            Some(name) => match resource.subresource(name) {
                Some(subresource) => Some(subresource),
                None if is_custom => {
                    let name = path.name.as_deref().unwrap_or_default();
                    return Err(ApiError::not_found(&resource.group_resource(), name));
                }
                None => return Err(ApiError::resource_not_served()),
            },
        };
        let call = Call {
            request,
            by: by.clone(),
            path,
            resource: Arc::clone(resource),
            subresource,
        };
        let has_name = path.name.is_some();
        if let Some(name) = path.name.as_deref().filter(|_| verb != Verb::Watch) {
            let faults = names::path_segment(name);
            if !faults.is_empty() {
                return Err(ApiError::bad_request(format!(
                    "Name parameter invalid: {}: {}",
                    quote(name),
                    faults.join(";")
                )));
            }
        }
        if let Origin::BuiltIn(BuiltIn::Review(review)) = &call.resource.origin {
            return match (verb, has_name) {
                (Verb::Create, false) => self.review(&call, *review, warnings),
                _ => Err(call.unsupported(verb)),
            };
        }
        match (verb, subresource) {
            (Verb::Create, Some(Subresource::Token)) if has_name => self.request_token(&call, warnings),
            (_, Some(Subresource::Token)) => Err(call.unsupported(verb)),
            (Verb::Get, _) => self.get(&call).await,
            (Verb::List, None) => self.list(&call).await,
            (Verb::Watch, None) => self.watch(&call).await,
            (Verb::Create, None) if is_custom || !has_name => self.create(&call, warnings).await,
            (Verb::Update, Some(Subresource::Scale)) => self.update_scale(&call, warnings).await,
            (Verb::Update, _) if has_name => self.update(&call, warnings).await,
            (Verb::Patch, Some(Subresource::Finalize)) => Err(call.unsupported(verb)),
            (Verb::Patch, _) if has_name => self.patch(&call, warnings).await,
            (Verb::Delete, None) => self.delete(&call, warnings).await,
            (Verb::DeleteCollection, None) if resource.verbs().contains(&Verb::DeleteCollection) => {
                self.delete_collection(&call, warnings).await
            }
            (Verb::Update | Verb::Patch, _) if is_custom => {
                Err(ApiError::bad_request("name must be provided"))
            }
            _ => Err(call.unsupported(verb)),
        }
    }

    async fn get(&self, call: &Call<'_>) -> Result<Reply, ApiError> {
        let media = call.media()?;
        if call.subresource == Some(Subresource::Finalize) {
            return Err(call.unsupported(Verb::Get));
        }
        if let Some(version) = call.request.query.non_empty("resourceVersion") {
            // kube-apiserver returns this error without a reason.
            let version = list::parse_version(version).map_err(|err| ApiError::untyped(err.message()))?;
            list::await_version(&self.engine, version).await?;
        }
        let target = call.target();
        let record = self.engine.store.get(&target.key());
        target.check_stored(record.as_deref())?;
        let record = record.ok_or_else(|| target.not_found())?;
        if let Some(paths) = call.scale_paths() {
            let scale = to_bytes(&scale_of(&call.resource.view(&record), paths)?);
            let pretty = call.request.is_pretty();
            return Ok(reply::encoded(StatusCode::OK, media.encoding, pretty, scale));
        }
        self.show(call, media, StatusCode::OK, &ResultObject::Record(record))
    }

    async fn list(&self, call: &Call<'_>) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let options = ListOptions::parse(&call.request.query, false)?;
        let selection = call.selection(&options)?;
        let include = IncludeObject::parse(&call.request.query);
        let namespace = call.path.namespace.as_deref();
        let page = list::list(&self.engine, &call.resource, namespace, &options, &selection).await?;
        let include = if matches!(media.conversion, Conversion::Table(_)) {
            include?
        } else {
            IncludeObject::Metadata
        };
        let view = self.view(call, media, include);
        Ok(reply::encoded(
            StatusCode::OK,
            media.encoding,
            call.request.is_pretty(),
            view.page(&page)?,
        ))
    }

    async fn watch(&self, call: &Call<'_>) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let options = ListOptions::parse(&call.request.query, true)?;
        let selection = call.selection(&options)?;
        let include = match media.conversion {
            Conversion::Table(_) => IncludeObject::parse(&call.request.query)?,
            Conversion::Object
            | Conversion::PartialObjectMetadata(_)
            | Conversion::PartialObjectMetadataList(_) => IncludeObject::Metadata,
        };
        let request = WatchRequest {
            resource: Arc::clone(&call.resource),
            namespace: call.path.namespace.clone(),
            options,
            selection: Arc::new(selection),
            media,
            include,
        };
        let Some(content_type) = media.encoding.watch_content_type() else {
            return Err(ApiError::not_acceptable(&[
                negotiate::JSON_WATCH,
                negotiate::PROTOBUF_WATCH,
            ]));
        };
        let open = OpenWatch::new(self.metrics.watches.clone());
        let frames = watch::start(&self.engine, request, self.stop.clone(), open).await?;
        Ok(reply::stream(content_type, frames))
    }

    async fn create(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let (body, encoding) = call.body()?;
        let options = WriteOptions::parse(&call.request.query, WriteVerb::Create)?;
        let working = request_body(&call.resource, body, encoding, options.validation, warnings)?;
        let written = self
            .engine
            .create(&call.target(), working, options, warnings)
            .await?;
        let name = match &written.object {
            ResultObject::Record(record) => object::name(&record.json()).to_owned(),
            ResultObject::Value(value) => object::name(value).to_owned(),
        };
        let mut reply = self.show(call, media, StatusCode::CREATED, &written.object)?;
        reply.extensions_mut().insert(CreatedName(name));
        Ok(reply)
    }

    async fn update(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let options = WriteOptions::parse(&call.request.query, WriteVerb::Update)?;
        let (body, encoding) = call.body()?;
        let working = request_body(&call.resource, body, encoding, options.validation, warnings)?;
        let edit = Edit::Replace(working);
        let written = self
            .engine
            .update(&call.target(), edit, options, warnings)
            .await?;
        self.show_written(call, media, &written)
    }

    async fn patch(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let is_built_in = call.resource.custom().is_none();
        let content_type = call.request.content_type();
        if patch_request::is_apply(content_type) {
            return self.apply(call, warnings).await;
        }
        let patch = PatchRequest::read(content_type, &call.request.body, is_built_in)?;
        let media = call.media()?;
        let options = WriteOptions::parse(&call.request.query, WriteVerb::Patch)?;
        if let Some(paths) = call.scale_paths() {
            let change = |scale: &Value, _: &mut Warnings| patch.apply(scale.clone());
            let edit = ScaleEdit::Change(&change);
            let written = self
                .engine
                .update_scale(&call.target(), paths, &edit, options, warnings)
                .await?;
            return self.show_scale(call, paths, &written);
        }
        let resource = Arc::clone(&call.resource);
        let change = |working: &Value, warnings: &mut Warnings| {
            patch.apply_to(&resource, working, options.validation, warnings)
        };
        let written = self
            .engine
            .update(&call.target(), Edit::Change(&change), options, warnings)
            .await?;
        self.show_written(call, media, &written)
    }

    async fn apply(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let options = WriteOptions::parse(&call.request.query, WriteVerb::Apply)?;
        let configuration = patch_request::read_configuration(&call.request.body, options)?;
        let target = call.target();
        if let Some(paths) = call.scale_paths() {
            let edit = ScaleEdit::Apply(&configuration);
            let written = self
                .engine
                .update_scale(&target, paths, &edit, options, warnings)
                .await?;
            return self.show_scale(call, paths, &written);
        }
        let written = self
            .engine
            .apply(&target, &configuration, options, warnings)
            .await?;
        self.show_written(call, media, &written)
    }

    async fn update_scale(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let Some(paths) = call.scale_paths() else {
            return Err(call.unsupported(Verb::Update));
        };
        let options = WriteOptions::parse(&call.request.query, WriteVerb::Update)?;
        call.media()?;
        let (bytes, encoding) = call.body()?;
        let body = crate::endpoints::body::parse(bytes, encoding).map_err(|err| {
            let summary = crate::endpoints::body::summary(bytes);
            ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type Scale): couldn't get version/kind; json parse \
                 error: {err} ({summary})"
            ))
        })?;
        let new_scale = body.value;
        let change = |_: &Value, _: &mut Warnings| Ok(new_scale.clone());
        let edit = ScaleEdit::Change(&change);
        let written = self
            .engine
            .update_scale(&call.target(), paths, &edit, options, warnings)
            .await?;
        self.show_scale(call, paths, &written)
    }

    async fn delete(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let options = self.delete_options(call)?;
        let target = call.target();
        match self.engine.delete_with(&target, &options, warnings).await? {
            Deleted::Pending(shown) => self.show(call, media, StatusCode::OK, &shown),
            Deleted::Removed(record) if call.resource.is(BuiltIn::ServiceAccount) => {
                self.show(call, media, StatusCode::OK, &ResultObject::Record(record))
            }
            Deleted::Removed(record) => {
                let object = record.json();
                let uid = object::uid(&object);
                let status = deleted(&call.resource.group_resource(), &target.name, uid);
                let pretty = call.request.is_pretty();
                Ok(reply::encoded(
                    StatusCode::OK,
                    media.encoding,
                    pretty,
                    to_bytes(&status),
                ))
            }
        }
    }

    async fn delete_collection(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let list_options = ListOptions::parse(&call.request.query, false)?;
        let selection = call.selection(&list_options)?;
        let options = self.delete_options(call)?;
        let namespace = call.path.namespace.as_deref();
        let page = list::list(&self.engine, &call.resource, namespace, &list_options, &selection).await?;
        for record in &page.records {
            let stored = record.json();
            let namespace = Some(object::namespace(&stored)).filter(|namespace| !namespace.is_empty());
            let mut target = Target::new(&call.resource, namespace, object::name(&stored));
            target.by = Some(call.by.clone());
            match self.engine.delete_with(&target, &options, warnings).await {
                Ok(_) => {}
                Err(err) if err.code() == StatusCode::NOT_FOUND => {}
                Err(err) => return Err(err),
            }
        }
        let view = self.view(call, media, IncludeObject::Metadata);
        let body = view.page(&page_of(page.records, page.version))?;
        Ok(reply::encoded(
            StatusCode::OK,
            media.encoding,
            call.request.is_pretty(),
            body,
        ))
    }

    fn delete_options(&self, call: &Call<'_>) -> Result<DeleteOptions, ApiError> {
        let bytes = &call.request.body;
        if bytes.is_empty() {
            return DeleteOptions::parse(&call.request.query, None);
        }
        // The options have a protobuf form for all kinds.
        let encoding = negotiate::input(call.request.content_type(), true)?;
        let body = crate::endpoints::body::parse(bytes, encoding).map_err(|err| {
            ApiError::bad_request(format!("couldn't get version/kind; json parse error: {err}"))
        })?;
        let kind = body.value["kind"].as_str().unwrap_or("DeleteOptions");
        if kind != "DeleteOptions" {
            let (kind, version) = (&body.value["kind"], &body.value["apiVersion"]);
            return Err(ApiError::bad_request(not_registered(kind, version)));
        }
        DeleteOptions::parse(&call.request.query, Some(body.value))
    }

    fn view<'a>(&self, call: &'a Call<'_>, media: OutputMedia, include: IncludeObject) -> View<'a> {
        View {
            resource: &call.resource,
            conversion: media.conversion,
            include,
            now: self.engine.clock.now(),
        }
    }

    pub(super) fn show(
        &self,
        call: &Call<'_>,
        media: OutputMedia,
        code: StatusCode,
        shown: &ResultObject,
    ) -> Result<Reply, ApiError> {
        let include = match media.conversion {
            Conversion::Table(_) => IncludeObject::parse(&call.request.query)?,
            Conversion::Object
            | Conversion::PartialObjectMetadata(_)
            | Conversion::PartialObjectMetadataList(_) => IncludeObject::Metadata,
        };
        let bytes = self.view(call, media, include).object(shown)?;
        Ok(reply::encoded(
            code,
            media.encoding,
            call.request.is_pretty(),
            bytes,
        ))
    }

    fn show_written(
        &self,
        call: &Call<'_>,
        media: OutputMedia,
        written: &WriteResult,
    ) -> Result<Reply, ApiError> {
        let code = if written.created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        self.show(call, media, code, &written.object)
    }

    fn show_scale(
        &self,
        call: &Call<'_>,
        paths: &ScalePaths,
        written: &WriteResult,
    ) -> Result<Reply, ApiError> {
        let scale = match &written.object {
            ResultObject::Record(record) => scale_of(&call.resource.view(record), paths)?,
            ResultObject::Value(working) => scale_of(working, paths)?,
        };
        let (encoding, pretty) = (call.media()?.encoding, call.request.is_pretty());
        Ok(reply::encoded(StatusCode::OK, encoding, pretty, to_bytes(&scale)))
    }
}

impl Call<'_> {
    pub(super) fn media(&self) -> Result<OutputMedia, ApiError> {
        let accept = self.request.accept();
        if self.resource.custom().is_none() {
            let lists =
                self.path.is_legacy_watch || self.request.method == Method::GET && self.path.name.is_none();
            let available: &[&str] = match lists {
                true => &negotiate::SERVED_BY_LISTS,
                false => &negotiate::SERVED,
            };
            negotiate::check_route(accept, available)?;
        }
        negotiate::output(accept, self.in_protobuf())
    }

    /// Returns the body and its encoding.
    pub(super) fn body(&self) -> Result<(&[u8], Encoding), ApiError> {
        let encoding = negotiate::input(self.request.content_type(), self.in_protobuf())?;
        Ok((&self.request.body[..], encoding))
    }

    /// Returns true if the objects of the request have a protobuf form.
    fn in_protobuf(&self) -> bool {
        self.resource.custom().is_none() || self.subresource == Some(Subresource::Scale)
    }

    pub(super) fn target(&self) -> Target {
        let name = self.path.name.as_deref().unwrap_or_default();
        let mut target = Target::new(&self.resource, self.path.namespace.as_deref(), name);
        target.subresource = self.subresource;
        target.by = Some(self.by.clone());
        let user_agent = self.request.header(header::USER_AGENT);
        target.manager = field_manager(&self.request.query, user_agent);
        target
    }

    fn scale_paths(&self) -> Option<&ScalePaths> {
        let custom = self
            .resource
            .custom()
            .filter(|_| self.subresource == Some(Subresource::Scale))?;
        custom.scale.as_ref()
    }

    fn selection(&self, options: &ListOptions) -> Result<Selection, ApiError> {
        let name = self.path.name.as_deref();
        Selection::parse(
            &self.resource,
            &options.label_selector,
            &options.field_selector,
            name,
        )
    }

    pub(super) fn unsupported(&self, verb: Verb) -> ApiError {
        if self.resource.custom().is_some() {
            ApiError::method_not_allowed(&self.resource.group_resource(), verb)
        } else {
            ApiError::no_such_method()
        }
    }
}

/// Returns the Kubernetes verb of a request.
pub(super) fn verb(request: &Request, route: &Route) -> Verb {
    let Route::Resource(path) = route else {
        return match request.method {
            Method::GET | Method::HEAD => Verb::Get,
            Method::POST => Verb::Post,
            Method::PUT => Verb::Put,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => Verb::Other,
        };
    };
    match (&request.method, path.name.is_some()) {
        (&Method::GET | &Method::HEAD, _) if path.is_legacy_watch => Verb::Watch,
        (&Method::GET | &Method::HEAD, true) => Verb::Get,
        (&Method::GET | &Method::HEAD, false) if request.query.flag("watch") == Some(true) => Verb::Watch,
        (&Method::GET | &Method::HEAD, false) => Verb::List,
        (&Method::POST, _) => Verb::Create,
        (&Method::PUT, _) => Verb::Update,
        (&Method::PATCH, _) => Verb::Patch,
        (&Method::DELETE, true) => Verb::Delete,
        (&Method::DELETE, false) => Verb::DeleteCollection,
        _ => Verb::Other,
    }
}
