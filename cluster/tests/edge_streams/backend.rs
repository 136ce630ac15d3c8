//! The backend: it echoes WebSockets and the bodies of HTTP/2, and answers other requests with `web`.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// Starts the backend in the network of this thread; it ends with the process.
pub fn start(address: &str, port: u16) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind((address, port))).unwrap();
    std::thread::spawn(move || runtime.block_on(serve(listener)));
}

async fn serve(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let builder = Builder::new(TokioExecutor::new());
            let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service_fn(answer));
            let _ = served.await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.version() == Version::HTTP_2 {
        let mut response = Response::new(request.into_body().boxed());
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/grpc"));
        return Ok(response);
    }
    if !request.headers().contains_key(header::UPGRADE) {
        return Ok(Response::new(whole("web")));
    }
    tokio::spawn(async move {
        if let Ok(upgraded) = hyper::upgrade::on(request).await {
            echo(TokioIo::new(upgraded)).await;
        }
    });
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    let response = response.header(header::CONNECTION, "upgrade").header(header::UPGRADE, "websocket");
    Ok(response.body(whole("")).unwrap())
}

fn whole(text: &'static str) -> BoxBody<Bytes, hyper::Error> {
    Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}).boxed()
}

async fn echo(mut stream: TokioIo<hyper::upgrade::Upgraded>) {
    let mut bytes = [0; 1024];
    while let Ok(read) = stream.read(&mut bytes).await
        && read > 0
    {
        let echoed = bytes.get(..read).unwrap_or_default();
        if stream.write_all(echoed).await.is_err() {
            return;
        }
    }
}
