"""The web server: uvicorn with bounded requests. Start it by `python -m gpucloud.server`."""
