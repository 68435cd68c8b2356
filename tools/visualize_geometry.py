#!/usr/bin/env python
"""Draw an encoding in a frame: supports of image tokens, response over the ground, attention of a query.

    tools/visualize_geometry.py configs/toy/petr-worldrope_toy.py --token CAM_FRONT 128 50 --out pictures
    tools/visualize_geometry.py CONFIG --checkpoint CHECKPOINT --sample TOKEN --token CAM_FRONT 128 50 --out pictures

Pixels are those of the image as the network gets it. Without a checkpoint the encoding is drawn as it starts. Written:

    support*.png            tokens' anchors, Gaussians or interval in all cameras and from above, per decoder layer
    depths.png              densities of predicted depth of these tokens, per decoder layer
    response_A.png, B, ...  logits of each token's key with queries over the ground plane, by their positions alone
    attention_layer*.png    where one query looks, per decoder layer (with a checkpoint only)

In responses, axial bands draw stripes along the axes, mixed ones a lattice per head. Its mean over heads is rings where
all heads share one support (WorldRoPE), a blur of lattices where groups of heads have their own anchors (URoPE); it is
grey where an encoding does not depend on the position of queries.
"""
import argparse
import string
from pathlib import Path
from types import SimpleNamespace

from mmengine.config import Config, DictAction

from georope.engine import CheckWeightsHook, build_model, load_from_local, local_file, read_weights
from georope.errors import one_line_errors
from georope.registry import DATASETS, MODELS
from georope.visualization import save_image
from georope.visualization.geometry import draw_attention, draw_depths, draw_response, draw_support
from georope.visualization.probe import annotated_boxes, find_sample, probe

ENCODINGS = Path(__file__).resolve().parents[1] / 'configs/_base_/encodings'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', type=local_file, help='config of a model; its test set is drawn')
    parser.add_argument('--checkpoint', type=local_file, help='trained weights')
    parser.add_argument('--accept-weights', action='store_true', help='draw weights of another model all the same')
    parser.add_argument('--sample', default='0', help='sample token, or index in the test set; default 0')
    parser.add_argument('--token', nargs=3, action='append', required=True, metavar=('CAMERA', 'U', 'V'),
                        help='image token at a pixel; may be given several times')
    parser.add_argument('--encodings', nargs='*', default=[
                        'urope', 'urope-mixed', 'learned-depth', 'rayrope', 'worldrope', 'worldrope-mixed'],
                        help="names in configs/_base_/encodings, or config files of a model or an `encoding`: their "
                        "responses, as they start, beside the model's; default, all that see where queries are: "
                        "%(default)s")
    parser.add_argument('--height', type=float, default=-1., help='of the plane of queries above the LiDAR, metres')
    parser.add_argument('--head', type=int, help='head whose response is drawn below the mean; default: the middle one')
    parser.add_argument('--query', type=int, help='query whose attention is drawn; default: the best score')
    parser.add_argument('--out', type=Path, required=True, help='folder for the pictures')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='change the config: key=value ...')
    args = parser.parse_args()
    if len(args.token) > len(string.ascii_uppercase):
        parser.error(f'--token may be given {len(string.ascii_uppercase)} times, not {len(args.token)}: A to Z')
    return args


def build_encoding(name: str, seen):
    """By its name in configs/_base_/encodings or its file; for the decoder of the model that was probed."""
    path = ENCODINGS / f'{name}.py' if (ENCODINGS / f'{name}.py').exists() else Path(name)
    if not path.is_file():
        raise SystemExit(f'--encodings {name}: neither a file nor one of '
                         f'{sorted(file.stem for file in ENCODINGS.glob("[!s]*.py"))}')
    cfg = Config.fromfile(path)
    # A model's config may change the encoding that its base brings along.
    encoding = cfg.model.pts_bbox_head.get('encoding') if 'model' in cfg else cfg.get('encoding')
    if encoding is None:
        raise SystemExit(f'--encodings {name}: {path} has no encoding of cross-attention')
    return MODELS.build(encoding, default_args=dict(
        num_heads=seen.num_heads, head_dim=seen.channels // seen.num_heads, num_layers=1))


@one_line_errors
def main() -> None:
    args = parse_args()
    cfg, model = build_model(args.config, args.cfg_options)
    if args.checkpoint:
        checkpoint = load_from_local(args.checkpoint, map_location='cpu')
        CheckWeightsHook('test', args.accept_weights).after_load_checkpoint(
            SimpleNamespace(model=model, cfg=cfg), checkpoint)
        model.load_state_dict(read_weights(checkpoint), strict=not args.accept_weights)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    try:
        draw(args, model, dataset)
    except ValueError as error:
        raise SystemExit(str(error)) from error


def draw(args: argparse.Namespace, model, dataset) -> None:
    data = dataset[find_sample(dataset, args.sample)]
    name = data['data_samples'].token
    seen = probe(model, data, annotated_boxes(dataset.ann_file, name), run=args.checkpoint is not None)
    tokens = {f'{letter}: {camera} ({u}, {v})': seen.find_token(camera, pixel(u), pixel(v))
              for letter, (camera, u, v) in zip(string.ascii_uppercase, args.token)}
    encodings = {name: build_encoding(name, seen) for name in args.encodings}
    head = model.pts_bbox_head
    encoding, bev_range, layers = head.encoding, float(head.pc_range[3]), len(head.transformer['decoder'].layers)
    state = f'{type(encoding).__name__} ' + (f'of {Path(args.checkpoint).name}' if args.checkpoint else 'as it starts')
    by_layer = encoding.predicts and args.checkpoint is not None

    def save(file: str, picture) -> None:
        save_image(str(args.out / file), picture)
        print(args.out / file)

    if args.checkpoint:
        query = int(seen.results['logits'][-1, 0].amax(-1).argmax()) if args.query is None else args.query
        for layer in range(layers):
            save(f'attention_layer{layer}.png', draw_attention(
                seen, query, layer, dataset.metainfo['classes'], bev_range, f'query {query}, layer {layer}'))
    own = f'{state},\nlast layer' if by_layer else state
    for token_name, token in tokens.items():
        save(f'response_{token_name[0]}.png', draw_response(
            seen, {own: encoding, **encodings}, token, bev_range, args.height, args.head,
            layers={own: layers - 1}, title=f'{token_name}: queries at height {args.height:g} m   {name}'))
    for layer in range(layers) if by_layer else (0, ):
        title = '   '.join((*tokens, f'{state}, layer {layer}' if by_layer else state, name))
        save(f'support_layer{layer}.png' if by_layer else 'support.png',
             draw_support(seen, encoding, tokens, layer, title=title))
    if by_layer:
        save('depths.png', draw_depths(seen, encoding, tokens, layers, f'{state}   {name}'))


def pixel(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'--token: {text!r} is not a pixel; it takes a camera and two numbers, CAMERA U V') from None


if __name__ == '__main__':
    main()
