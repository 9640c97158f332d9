"""The status page: one page of this machine alone, made anew by each reading."""

from __future__ import annotations

import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tlt.traces.watch.guard import Status, is_problem

HOST, REFRESH_S = "127.0.0.1", 5
STYLE = (
    "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    ".problem{color:#a00}.notice{color:#850}"
    "td{padding:.2em .8em .2em 0;vertical-align:top}h2{font-size:1em;margin:1.4em 0 .2em}p{margin:.2em 0}"
)


class Page:
    """Serves the last status on 127.0.0.1; used as a context manager."""

    def __init__(self, port: int) -> None:
        """Listen; port 0 takes a free one. Raises OSError if the port is taken."""
        self._content = b"<!doctype html><p>nothing was read yet"
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
                    self.send_error(403)  # another site's name that was pointed at this machine
                    return
                content = page._content
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- http.server's name
                del format, args

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self.url = f"http://{HOST}:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def show(self, source: str, statuses: list[Status]) -> None:
        """Show the newest of these, and a line for each before it."""
        self._content = html(source, statuses).encode()


def html(source: str, statuses: list[Status]) -> str:
    """Return the page of a run: what is wrong now, its steps, and what cannot be known."""
    now = statuses[-1]
    parts = [
        f"<!doctype html><meta charset=utf-8><meta http-equiv=refresh content={REFRESH_S}>",
        f"<title>{escape(source)}</title><style>{STYLE}</style><h1>{escape(source)}</h1>",
        f"<p>step {now.step}: {escape(now.text)}</p>",
        f"<p>{now.problems} problems, {len(now.findings) - now.problems} notices</p>",
    ]
    for finding in now.findings:
        kind = "problem" if is_problem(finding) else "notice"
        lines = (finding.found, f"why: {finding.why}", f"do: {finding.todo}", f"from {finding.source}")
        parts.append(f'<h2 class="{kind}">{kind}: {escape(finding.check)}</h2>')
        parts += [f"<p>{escape(line)}</p>" for line in lines]
    parts.append("<h2>steps</h2><table>")
    parts += [f"<tr><td>{each.step}<td>{escape(each.text)}" for each in reversed(statuses)]
    parts.append("</table><h2>not known</h2><table>")
    parts += [f"<tr><td>{escape(name)}<td>{escape(why)}" for name, why in now.unknown.items()]
    return "\n".join([*parts, "</table>"])
