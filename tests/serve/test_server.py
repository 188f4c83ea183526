"""The server: what it answers, whom it refuses, what it survives."""

import http.client
import json
import random
import socket
from contextlib import closing

import pytest

from tests.hang import HANG_S
from tests.serve.waiting import at_last

pytestmark = pytest.mark.extra
ASK = {"model": "llama-13b", "cluster": "dgx-a100-80gb", "gpus": "16", "batch": "128", "tp": "2", "pp": "4"}


def ask(server, method, path, body=None, headers=None):
    with closing(http.client.HTTPConnection(server, timeout=HANG_S)) as connection:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def post(server, path, body, **headers):
    text = body if isinstance(body, (str, bytes)) else json.dumps(body)
    status, _, data = ask(server, "POST", path, text, {"content-type": "application/json"} | headers)
    return status, json.loads(data) if data else None


def test_the_page_loads_nothing_else(server):
    status, headers, html = ask(server, "GET", "/")
    html, policy = html.decode(), headers["content-security-policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html


def test_an_answer_has_the_plan(server):
    from planner.serve.question import read_question

    status, record = post(server, "/answer", {"question": ASK})
    assert status == 200
    best = next(x for x in record["layouts"] if "best" in x["roles"])
    plan = read_question(ASK).plan()
    assert best["layout"] == plan.best.layout
    assert best["step_time_s"] == pytest.approx(plan.best.step_time_s, rel=1e-5)
    assert record["exports"] == []  # they take a search of another framework's schedules
    status, beside = post(server, "/beside", {"question": ASK})
    assert status == 200
    assert {x["name"] for x in beside["exports"]} >= {"Plan (JSON)", "Megatron-LM"}
    assert beside["reasons"]


def test_why_and_timeline_and_arguments(server):
    status, why = post(server, "/why", {"question": ASK, "wanted": "recompute=full"})
    assert (status, why["reason"]) == (200, "slower")
    assert why["layout"]["step_time_s"] - why["best"]["step_time_s"] == pytest.approx(why["difference"]["step_time_s"])
    status, step = post(server, "/timeline", {"question": ASK, "row": "0"})
    assert status == 200
    assert len(step["timeline"]) > 100
    for row in ("99", "-1", "x"):
        _, refused = post(server, "/timeline", {"question": ASK, "row": row})
        assert f"row is '{row}'; allowed: 0 to " in refused["error"]
    text = (
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 128"
    )
    status, taken = post(server, "/taken", {"question": ASK, "text": text})
    assert status == 200
    said = dict(part.split("=") for part in taken["wanted"].split(","))
    assert (said["tp"], said["pp"], said["dp"], said["micro_batch"]) == ("4", "2", "2", "2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"train_batch_size": "auto"}', "ds_config.json: field train_batch_size is 'auto', which"),
        ('{"train_batch_size": 128, "train_batch_size": 64}', "ds_config.json: "),
        ("{", "ds_config.json: not valid JSON: "),
        ("[" * 5000, "no argument of Megatron-LM is in the text"),
        ('{"a": ' * 5000, "ds_config.json: not valid JSON: its lists or objects are nested too deeply"),
        ("[model]\n[training", "torchtitan.toml: not valid TOML: "),
        ("[parallelism]\ntensor_parallel_degree = 3",
         "torchtitan.toml: degrees but the shards' make 3 ranks; allowed: a divisor of 16 GPUs"),
        ('  [parallelism]  # ours\r\nfsdp_reshard_after_forward = "no"\r\n',
         "torchtitan.toml: field parallelism.fsdp_reshard_after_forward is 'no'; allowed: default, always, never"),
        ('{"train_batch_size": 100}', "ds_config.json: train_batch_size is 100; allowed: a multiple of 16 "),
    ],
)  # fmt: skip
def test_a_wrong_configuration_names_the_users_field(server, text, said):
    status, record = post(server, "/taken", {"question": ASK, "text": text})
    assert status == 200
    assert record["error"].startswith(said)
    assert "\n" not in record["error"]
    assert "/" not in record["error"]  # no path of this machine


def test_deepspeeds_json_is_taken(server):
    config = {"train_batch_size": 128, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1},
              "pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2}, "steps": 1}  # fmt: skip
    status, taken = post(server, "/taken", {"question": ASK, "text": "\n" + json.dumps(config)})
    assert status == 200
    said = dict(part.split("=") for part in taken["wanted"].split(","))
    wanted = {"dp": "4", "tp": "2", "pp": "2", "zero": "1", "micro_batch": "4"}
    assert {name: said[name] for name in wanted} == wanted
    assert [note.partition(":")[0] for note in taken["notes"]] == [
        "train_batch_size counts each of tp 2 ranks as a replica, without an mpu", "not understood",
    ]  # fmt: skip


def test_torchtitans_toml_is_taken(server):
    text = """[training]
local_batch_size = 16
dtype = "bfloat16"
frob = 3

[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = 2
pipeline_parallel_schedule = "GPipe"

[activation_checkpoint]
mode = "full"
"""
    status, taken = post(server, "/taken", {"question": ASK, "text": text})
    assert status == 200
    said = dict(part.split("=") for part in taken["wanted"].split(","))
    wanted = {"dp": "4", "tp": "2", "pp": "2", "zero": "1", "micro_batch": "2", "schedule": "gpipe"}
    assert {name: said[name] for name in wanted} == wanted
    assert (said["recompute"], said["sequence_parallel"]) == ("full", "on")
    assert taken["notes"] == [
        "not understood: training.frob", "main-dtype bf16: compared with fp32",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403), ({"host": "127.0.0.1.evil.example"}, 403), ({"host": ""}, 403),
        ({"host": "[::1"}, 403), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403),
        ({"content-type": "text/plain"}, 422), ({"host": "localhost:1"}, 200),
    ],
)  # fmt: skip
def test_foreign_pages_are_refused(server, headers, status):
    assert post(server, "/answer", {"question": ASK}, **headers)[0] == status


@pytest.mark.parametrize(
    "body",
    [
        "", "[]", "{", "null", '{"question": 1}', '{"question": {"gpus": 4}}', '{"question": {}, "more": "x"}',
        "[" * 100_000, b"\xff\xfe",
    ],
)  # fmt: skip
def test_a_wrong_body_gets_one_line(server, body):
    status, record = post(server, "/answer", body)
    assert status == 422
    assert "\n" not in record["error"]
    assert "Traceback" not in record["error"]


def test_what_is_wrong_with_a_question_is_an_answer(server):
    for name in ("/etc/passwd", "nose", ""):
        status, record = post(server, "/answer", {"question": ASK | {"model": name}})
        assert status == 200
        assert "allowed: " in record["error"] or "did you mean" in record["error"]


def test_a_long_body_is_refused(server):
    assert post(server, "/answer", {"question": ASK | {"config": "x" * 300_000}})[0] == 422
    for method, path in (("GET", "/../../etc/passwd"), ("GET", "/answer"), ("PUT", "/"), ("GET", "/style.css")):
        assert ask(server, method, path)[0] in (404, 405)


def test_a_token_is_asked_for_where_others_can_reach_it():
    testing = pytest.importorskip("starlette.applications")
    assert testing
    from planner.serve.guard import Guard

    said = []

    async def inner(scope, receive, send):
        said.append("let in")

    async def shown(query=b"", headers=()):
        sent = []

        async def send(message):
            sent.append(message)

        guard = Guard(inner, hosts=None, token="secret")
        scope = {"type": "http", "query_string": query, "headers": [(b"host", b"box:1"), *headers]}
        await guard(scope, None, send)
        return sent

    assert at_last(shown())[0]["status"] == 401
    assert at_last(shown(b"token=wrong"))[0]["status"] == 401
    assert at_last(shown(headers=[(b"cookie", b"planner-token=wrong")]))[0]["status"] == 401
    assert said == []
    given = at_last(shown(b"token=secret"))[0]
    cookie = dict(given["headers"])[b"set-cookie"]
    assert given["status"] == 303
    assert b"HttpOnly; SameSite=Strict" in cookie
    at_last(shown(headers=[(b"cookie", cookie.split(b";")[0])]))
    assert said == ["let in"]


@pytest.mark.slow
def test_it_survives_whatever_is_sent(server):
    """Seeded: requests cut off, bodies of noise, fields of the wrong kind, names that no field has."""
    draw = random.Random(7)
    host, port = server.split(":")
    values = [
        "",
        "0",
        "-1",
        "1e400",
        "nan",
        "9" * 400,
        "/etc/passwd",
        "\u0000",
        "!",
        "!,",
        ",",
        "x" * 3000,
        "{}",
        "8,8,8",
    ]
    fields = [*ASK, "config", "seq_len", "schedule", "zero", "recompute", "max_memory_gib", "network", "nose", "ep"]
    for n in range(600):
        question = ASK | {draw.choice(fields): draw.choice(values) for _ in range(draw.randint(1, 3))}
        path, beside = draw.choice([("answer", ""), ("why", "wanted"), ("taken", "text"), ("timeline", "row")])
        said = draw.choice(["tp=9", "=", "x=1", "tp=" + "9" * 99, "--tensor-model-parallel-size 8", *values])
        body = json.dumps({"question": question} | ({beside: said} if beside else {}))
        if n % 3 == 0:
            noise = bytearray(
                f"POST /why HTTP/1.1\r\nhost: {server}\r\ncontent-length: 90\r\n\r\n{body}".encode()[:200]
            )
            for _ in range(draw.randint(0, 6)):
                noise[draw.randrange(len(noise))] = draw.randrange(256)
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(bytes(noise[: draw.randrange(len(noise))]))
        else:
            status, _ = post(server, f"/{path}", body)
            assert status == 200, (question, status)
    assert post(server, "/answer", {"question": ASK})[0] == 200


def test_a_curve_is_searched_at_each_point(server):
    from planner.serve.question import read_question

    status, record = post(server, "/along", {"question": ASK, "axis": "batch"})
    assert status == 200
    asked = int(ASK["batch"])
    assert [p["x"] for p in record["points"]] == [asked * t for t in (0.125, 0.25, 0.5, 1, 2, 4, 8)]
    twice = read_question(ASK | {"batch": str(2 * asked)}).plan().best
    assert record["points"][4]["step_s"] == pytest.approx(twice.step_time_s)
    status, record = post(server, "/along", {"question": ASK, "axis": "power"})
    assert record["error"] == "axis is 'power'; allowed: gpus, batch, bandwidth"
